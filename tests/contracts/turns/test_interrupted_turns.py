"""A turn that is interrupted again and again ends as a dead letter, whatever interrupts it."""

from __future__ import annotations

import pytest

from delivery.broker.leases import MemoryLeases
from delivery.database.engine import Database
from gateway.store.turn_state import CRASH_LIMIT, DEAD_LETTER_PREFIX, QUARANTINE_AFTER_CRASHES, TurnState
from gateway.store.turns import turns
from gateway.turns.claim import ClaimedTurn, EndedUnrun, Quarantined, TurnClaimer
from ingress_harness import IngressHarness, open_ingress_harness


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """A conversation to have turns in."""
    return await open_ingress_harness(database)


async def _claim(harness: IngressHarness, worker_id: str) -> ClaimedTurn | EndedUnrun | None:
    """Claim the room's turn in a new lease, alone if that is demanded."""
    claimer, conversation = TurnClaimer(harness.transactions, worker_id), await harness.get_conversation()
    async with MemoryLeases().acquire(conversation.id) as lease:
        claim = await claimer.next(conversation.id, lease, None)
        if isinstance(claim, Quarantined):
            claim = await claimer.next(conversation.id, lease, claim.fence, alone=True)
    assert not isinstance(claim, Quarantined)
    return claim


@pytest.mark.parametrize("workers", [["here"], ["here", "there"]], ids=["lost leases", "crashes"])
async def test_a_turn_that_is_always_interrupted_is_dead_lettered(
    harness: IngressHarness, workers: list[str]
) -> None:
    """A turn whose process dies, or only loses the lease, is run `CRASH_LIMIT` times and no more."""
    await harness.send_message("work")
    (turn,) = await harness.list_open_turns()
    for number in range(CRASH_LIMIT):
        assert isinstance(await _claim(harness, workers[number % len(workers)]), ClaimedTurn)
    ended = await _claim(harness, workers[0])
    assert isinstance(ended, EndedUnrun)
    async with harness.database.read() as connection:
        found = await turns.get(connection, harness.account, turn.id)
    assert found is not None
    assert (found.state, found.attempt) == (TurnState.FAILED, CRASH_LIMIT)
    assert (found.error or "").startswith(DEAD_LETTER_PREFIX)


async def test_a_turn_that_is_released_counts_no_interruption(harness: IngressHarness) -> None:
    """Turns that a stopping gateway or an unreachable model puts back into the queue are not suspect."""
    await harness.send_message("work")
    for number in range(CRASH_LIMIT + 1):
        claim = await _claim(harness, f"worker{number}")
        assert isinstance(claim, ClaimedTurn)
        assert claim.turn.crashes < QUARANTINE_AFTER_CRASHES
        async with harness.database.begin() as connection:
            await turns.requeue(connection, claim.turn.id, from_state=TurnState.RUNNING)
