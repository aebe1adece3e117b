"""The pure rules of a turn's life: who is suspected of crashes, and when a failed try is repeated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.turn_state import (
    DEAD_POINTS,
    FINAL,
    LONGEST_RETRY_DELAY,
    OPEN,
    QUARANTINE_DELAYS,
    QUARANTINE_POINTS,
    RETRY_DELAYS,
    Interruption,
    RetryPeriods,
    TurnState,
    decide_poison,
    retry_after,
)

INTERRUPTIONS = st.sampled_from(Interruption)


@given(points=st.integers(0, 100), interruption=INTERRUPTIONS)
def test_a_crash_count_only_grows_by_interruptions(points: int, interruption: Interruption) -> None:
    """Another crash never makes a turn less suspect, and a dead-lettered one never runs again."""
    now = decide_poison(points, interruption, waited_through_crash=False)
    then = decide_poison(now.points, Interruption.CRASH, waited_through_crash=False)
    assert now.points >= points
    assert (then.alone, then.dead) >= (now.alone, now.dead)
    assert now.alone or not now.dead


@given(st.lists(st.tuples(INTERRUPTIONS, st.booleans()), max_size=80))
def test_the_number_of_interruptions_is_bounded(lives: list[tuple[Interruption, bool]]) -> None:
    """Each one counts at least a point, even if processes die while the turn waits, once for each crash."""
    points, interruptions, may_exonerate = 0, 0, False
    for interruption, waited in lives:
        was_alone = points >= QUARANTINE_POINTS
        exonerates = waited and may_exonerate and interruption is Interruption.NONE
        found = decide_poison(points, interruption, waited_through_crash=exonerates)
        may_exonerate = (was_alone and interruption is Interruption.CRASH) or (
            may_exonerate and interruption is Interruption.NONE and not exonerates
        )
        points, interruptions = found.points, interruptions + (interruption is not Interruption.NONE)
        assert points >= interruptions
        assert found.dead == (points >= DEAD_POINTS)


def test_five_crashes_alone_are_dead_with_growing_waits_before_each() -> None:
    """Two outages do not isolate a turn; alone, each crash delays the next attempt longer."""
    points = 0
    for _ in range(QUARANTINE_POINTS):
        shared = decide_poison(points, Interruption.CRASH, waited_through_crash=False)
        assert (shared.wait, shared.dead) == (0.0, False)
        points = shared.points
    waits = []
    while not (found := decide_poison(points, Interruption.CRASH, waited_through_crash=False)).dead:
        waits.append(found.wait)
        points = found.points
    assert waits == list(QUARANTINE_DELAYS)


@given(st.floats(0, 200_000))
def test_retries_wait_longer_each_time_and_fill_their_period(period: float) -> None:
    """The waits never shrink, never exceed the longest, and end before they exceed the period."""
    waits: list[float] = []
    while (wait := retry_after(len(waits), period=period)) is not None:
        waits.append(wait)
    assert waits == sorted(waits)
    assert sum(waits) <= period
    assert all(0 < wait <= LONGEST_RETRY_DELAY for wait in waits)
    assert period - sum(waits) < LONGEST_RETRY_DELAY or not waits


def test_a_question_is_retried_for_minutes_and_a_job_for_hours() -> None:
    """A person waits for a question's answer; a job's comment may come much later."""
    periods = RetryPeriods()
    assert retry_after(3, period=periods.for_trigger("message")) == RETRY_DELAYS[3]
    assert retry_after(6, period=periods.for_trigger("message")) is None
    assert retry_after(20, period=periods.for_trigger("job")) == LONGEST_RETRY_DELAY
    assert retry_after(40, period=periods.for_trigger("job")) is None


def test_every_state_is_open_or_final() -> None:
    """The queries that look for work cover every state."""
    assert {*OPEN, *map(str, FINAL)} == {str(state) for state in TurnState}
