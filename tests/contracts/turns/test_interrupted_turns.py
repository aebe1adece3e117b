"""A turn that is interrupted again and again ends as a dead letter, whatever interrupts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice, repeat

import pytest
from sqlalchemy import update

from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.database.engine import Database
from gateway.store import tables
from gateway.store.turn_state import (
    DEAD_LETTER_PREFIX,
    DEAD_POINTS,
    Interruption,
    TurnState,
)
from gateway.store.turns import turns
from gateway.turns.claim import ClaimedTurn, EndedUnrun, Quarantined, TurnClaimer
from gateway.turns.histories import HistoryCache
from ingress_harness import IngressHarness, open_ingress_harness


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """A conversation to have turns in."""
    return await open_ingress_harness(database)


async def _claim(harness: IngressHarness, claimer: TurnClaimer) -> ClaimedTurn | EndedUnrun:
    """Claim the room's turn in a new lease, alone if that is demanded, and without waiting for delays."""
    conversation = await harness.get_conversation()
    async with MemoryLeases().acquire(conversation.id) as lease:
        await _end_delay(harness)
        claim = await claimer.next(conversation.id, lease, None)
        if isinstance(claim, Quarantined):
            await _end_delay(harness)
            claim = await claimer.next(conversation.id, lease, claim.fence, alone=True)
    assert isinstance(claim, ClaimedTurn | EndedUnrun)
    return claim


async def _end_delay(harness: IngressHarness) -> None:
    async with harness.database.begin() as connection:
        await connection.execute(update(tables.turns).values(next_at=None))


def _workers(harness: IngressHarness) -> Iterator[TurnClaimer]:
    """Yield the claimers of one process after another."""
    return (
        TurnClaimer(harness.transactions, f"process{number}", histories=HistoryCache()) for number in count()
    )


async def _interrupt_until_dead(harness: IngressHarness, claimers: Iterable[TurnClaimer]) -> int:
    """Claim a turn and abandon it until it is dead; returns how often it ran."""
    await harness.send_message("work")
    (turn,) = await harness.list_open_turns()
    runs = 0
    for claimer in claimers:
        if isinstance(await _claim(harness, claimer), EndedUnrun):
            break
        runs += 1
    async with harness.database.read() as connection:
        found = await turns.get(connection, harness.account, turn.id)
    assert found is not None
    assert (found.state, found.attempt) == (TurnState.FAILED, runs)
    assert (found.error or "").startswith(DEAD_LETTER_PREFIX)
    return runs


async def test_a_turn_that_kills_its_process_is_dead_after_five_crashes(harness: IngressHarness) -> None:
    """Two isolate it, and three more that it causes alone end it."""
    assert await _interrupt_until_dead(harness, _workers(harness)) == 5


async def test_a_turn_whose_process_only_loses_leases_has_a_bound_too(harness: IngressHarness) -> None:
    """A process that lives counts less against the turn, and no turn is begun for ever."""
    claimer = TurnClaimer(harness.transactions, "here", histories=HistoryCache())
    assert await _interrupt_until_dead(harness, repeat(claimer)) == DEAD_POINTS


async def test_processes_that_die_without_the_turn_speak_for_it(harness: IngressHarness) -> None:
    """Kills from outside hit a turn that waits as well; they exonerate it, and the total stays bounded."""
    await harness.send_message("work")
    runs = 0
    for claimer in _workers(harness):
        claim = await _find(harness, claimer)
        if isinstance(claim, Quarantined):
            claim = await _claim(
                harness, TurnClaimer(harness.transactions, f"{runs} later", histories=HistoryCache())
            )
        if isinstance(claim, EndedUnrun):
            break
        assert isinstance(claim, ClaimedTurn)
        runs += 1
    assert 2 * 5 < runs <= DEAD_POINTS


async def _find(harness: IngressHarness, claimer: TurnClaimer) -> object:
    """Have a process find the turn; a quarantined one waits until that process has died."""
    conversation = await harness.get_conversation()
    async with MemoryLeases().acquire(conversation.id) as lease:
        return await claimer.next(conversation.id, lease, None)


@pytest.mark.parametrize(("same", "cause"), [(True, Interruption.LOST), (False, Interruption.CRASH)])
async def test_the_cause_of_an_interruption_is_known_to_the_next_attempt(
    harness: IngressHarness, cause: Interruption, *, same: bool
) -> None:
    """A process that finds its own turn has lost a lease; only another process reports a restart."""
    await harness.send_message("work")
    here, there = (
        TurnClaimer(harness.transactions, "here", histories=HistoryCache()),
        TurnClaimer(harness.transactions, "there", histories=HistoryCache()),
    )
    first = await _claim(harness, here)
    again = await _claim(harness, here if same else there)
    assert isinstance(first, ClaimedTurn)
    assert isinstance(again, ClaimedTurn)
    assert (first.interruption, again.interruption) == (Interruption.NONE, cause)


async def test_a_turn_that_is_released_counts_no_interruption(harness: IngressHarness) -> None:
    """Turns that a stopping gateway or an unreachable model puts back into the queue are not suspect."""
    await harness.send_message("work")
    for claimer in islice(_workers(harness), DEAD_POINTS + 1):
        claim = await _claim(harness, claimer)
        assert isinstance(claim, ClaimedTurn)
        assert claim.turn.crashes == 0
        async with harness.database.begin() as connection:
            await turns.requeue(connection, claim.turn.id, from_state=TurnState.RUNNING)


async def test_a_turn_of_a_deleted_agent_fails_with_the_remedy(harness: IngressHarness) -> None:
    """The error says how to continue, because the conversation keeps its agent."""
    await harness.send_message("work")
    (turn,) = await harness.list_open_turns()
    async with harness.database.begin() as connection:
        await connection.execute(update(tables.turns).values(agent="agt_deleted"))
    assert isinstance(await _claim(harness, next(_workers(harness))), EndedUnrun)
    async with harness.database.read() as connection:
        found = await turns.get(connection, harness.account, turn.id)
    assert found is not None
    assert (found.error or "").startswith("agent agt_deleted no longer exists")
    for remedy in ("/new", "a conversation of another name", "delete this conversation"):
        assert remedy in (found.error or "")
