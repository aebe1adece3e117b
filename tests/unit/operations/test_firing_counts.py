"""The count of scheduled firings finds what was missed and what was repeated."""

from __future__ import annotations

from typing import Any

from bench.firings import count_firings, parse_plan


def fired(schedule: str, turn: str | None = None) -> dict[str, Any]:
    """Return the event of a firing."""
    return {"type": "schedule.fired", "data": {"schedule": schedule}} | ({"turn": turn} if turn else {})


def ended(turn: str) -> dict[str, Any]:
    """Return the event of a turn's end."""
    return {"type": "turn.completed", "turn": turn, "data": {}}


def test_an_exact_run_counts_nothing() -> None:
    """One firing, one end and one message for each schedule."""
    events = [fired("sch_1", "trn_1"), ended("trn_1"), fired("sch_2"), ended("trn_other")]
    texts = {1000: ["hello", "t1000x0"], 1001: ["Reminder: t1001x1"]}
    assert set(count_firings(["sch_1", "sch_2"], events, texts).values()) == {0}


def test_each_fault_is_counted() -> None:
    """A missing firing, a second one, a turn that ended twice, and a message that is missing or repeated."""
    events = [
        fired("sch_1", "trn_1"),
        fired("sch_1", "trn_2"),
        ended("trn_1"),
        ended("trn_1"),
        ended("trn_2"),
    ]
    assert count_firings(["sch_1", "sch_2"], events, {1000: ["t1000x0", "t1000x0"]}) == {
        "missed": 1,
        "doubled": 1,
        "turns_doubled": 1,
        "messages_missing": 1,
        "messages_repeated": 1,
    }


def test_a_smaller_plan() -> None:
    """The size of a run is given on the command line."""
    plan, keep = parse_plan(["--firings", "200", "--kills", "6"])
    assert (plan.firings, plan.kills, plan.replicas, keep) == (200, 6, 2, None)
