"""A dictionary that forgets its oldest entries."""

from __future__ import annotations

from channels.receiving.bounded_dict import BoundedDict


def test_what_was_set_longest_ago_is_forgotten() -> None:
    """An entry that is set again is the newest one."""
    known = BoundedDict[str, int](2)
    known["a"], known["b"] = 1, 2
    known["a"] = 3
    known["c"] = 4
    assert known == {"a": 3, "c": 4}
