"""The count of the proof finds lost, duplicated and reordered answers, and inexact logs."""

from __future__ import annotations

from typing import Any

import pytest

from bench import recovery
from bench.chaos.tally import check_chat, check_log, count, message_mark


def make_log(*turns: str) -> list[dict[str, Any]]:
    """Return an exact log of turns that were answered one after the other."""
    kinds = ("turn.queued", "message.completed", "turn.completed")
    said = [{"type": kind, "turn": turn} for turn in turns for kind in kinds]
    return [{**event, "n": place, "seq": 10 + place} for place, event in enumerate(said, 1)]


@pytest.mark.parametrize(
    ("answered", "decision"),
    [
        ([0, 1, 2], (0, 0, 0)),
        ([0, 2], (1, 0, 0)),
        ([0, 1, 1, 2], (0, 1, 0)),
        ([0, 2, 1], (0, 0, 1)),
        ([], (3, 0, 0)),
    ],
)
def test_what_a_chat_received(answered: list[int], decision: tuple[int, int, int]) -> None:
    """Lost, duplicated and reordered answers are each counted."""
    assert check_chat(3, answered) == decision


def test_an_exact_log_is_exact() -> None:
    """A log with a hole, a repeat or a foreign turn among the answers is not exact."""
    exact = make_log("one", "two")
    assert check_log(exact, turns=2) is None
    assert check_log(exact, turns=3) == "2 turns queued, not 3"
    assert check_log(exact[:2] + exact[3:], turns=2) == "n has a hole or a repeat"
    assert check_log([exact[0], *exact], turns=2) == "n has a hole or a repeat"
    refused = {"type": "message.completed", "n": 7, "seq": 17}
    assert check_log([*exact, refused], turns=2) == "turns were not answered once each, in order"


def test_a_run_is_counted_over_all_chats() -> None:
    """One chat's fault does not hide another's."""
    answers = {
        1: [f"said {message_mark(1, 0)}"],
        2: [f"said {message_mark(2, 0)}", f"said {message_mark(2, 0)}"],
    }
    logs = {1: make_log("a"), 2: make_log("b")}
    tally = count(answers, logs, asked={1: 2, 2: 1})
    assert (tally.turns, tally.lost, tally.duplicated, tally.reordered) == (3, 1, 1, 0)
    assert (tally.logs, tally.logs_exact) == (2, 1)
    assert tally.faults == ("chat 1: 1 turns queued, not 2",)


def test_a_recovery_counts_what_is_missing_doubled_and_unasked() -> None:
    """One chat has its answer, one twice, one none, and one something else besides."""
    said = {
        1: ["heard word in 1."],
        2: ["heard word in 2.", "heard word in 2."],
        3: [],
        4: ["heard word in 4.", "heard word in 44."],
    }
    assert recovery.count(said) == recovery.AnswerCount(lost=1, doubled=1, unasked=1)
