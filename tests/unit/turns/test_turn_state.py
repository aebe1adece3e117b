"""The pure rules of a turn's life: who is suspected of crashes, and when a failed try is repeated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.turn_state import (
    CRASH_LIMIT,
    FINAL,
    OPEN,
    QUARANTINE_AFTER_CRASHES,
    RETRY_DELAYS,
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


@given(st.integers(1, 1000))
def test_a_failed_try_waits_longer_each_time_and_not_for_ever(attempt: int) -> None:
    """The waits grow, there are as many as are listed, and after the last the turn fails."""
    wait, following = retry_after(attempt), retry_after(attempt + 1)
    assert (wait is not None) == (attempt <= len(RETRY_DELAYS))
    assert wait is None or wait > 0
    assert following is None or (wait is not None and following > wait)


def test_every_state_is_open_or_final() -> None:
    """The queries that look for work cover every state."""
    assert {*OPEN, *map(str, FINAL)} == {str(state) for state in TurnState}
