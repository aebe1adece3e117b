"""The pure rules of a turn's life: who is suspected of crashes, and when a failed try is repeated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.turn_state import (
    CRASH_LIMIT,
    FINAL,
    LONGEST_RETRY_DELAY,
    OPEN,
    QUARANTINE_AFTER_CRASHES,
    RETRY_DELAYS,
    RetryPeriods,
    TurnState,
    decide_poison,
    retry_after,
)


@given(crashes=st.integers(0, 100), again=st.booleans())
def test_a_suspicion_only_grows(crashes: int, *, again: bool) -> None:
    """Another crash never makes a turn less suspect, and a dead-lettered one never runs again."""
    now = decide_poison(crashes, interrupted_again=again)
    then = decide_poison(now.crashes, interrupted_again=True)
    assert now.crashes == crashes + again
    assert (then.alone, then.dead) >= (now.alone, now.dead)
    assert now.alone or not now.dead


@given(st.lists(st.booleans(), max_size=30))
def test_a_turn_is_given_up_exactly_at_its_last_crash(lives: list[bool]) -> None:
    """Claims that end well cost nothing; the first crash is shared, later ones are not, then it ends."""
    crashes = 0
    for crashed in lives:
        found = decide_poison(crashes, interrupted_again=crashed)
        crashes = found.crashes
        assert found.alone == (crashes >= QUARANTINE_AFTER_CRASHES)
        assert found.dead == (crashes >= CRASH_LIMIT)
    assert crashes == sum(lives)


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
