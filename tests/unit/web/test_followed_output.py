"""Output that is followed: only what is new is printed, also when its beginning was dropped."""

from __future__ import annotations

from gateway.cli.commands.jobs import OVERLAP, new_output


def test_what_is_new_is_printed() -> None:
    """The rest of an output that grew, and nothing of one that did not."""
    assert new_output("", "one\n") == "one\n"
    assert new_output("one\n", "one\ntwo\n") == "two\n"
    assert new_output("one\n", "one\n") == ""


def test_a_dropped_beginning_prints_nothing_twice() -> None:
    """Of an output that keeps its end alone, what follows the printed end is new."""
    printed = "".join(f"{number}\n" for number in range(1000))
    kept = printed[OVERLAP:] + "new\n"
    assert new_output(printed, kept) == "new\n"
    assert new_output(printed, "something else") == "something else"
