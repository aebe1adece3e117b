"""Several people decide at the same moment, and a turn ends while they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from databases import until_waiting
from delivery.database.engine import Database
from gateway.agents.port import Agent, AgentEvent, ApprovalRequired, PendingToolCall, Tools, TurnInput
from gateway.conversations.approvals import AlreadyDecided, Approvals, decide_in
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as store
from gateway.store.turns import turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from turn_worker import TurnWorkerHarness, open_turn_worker

CALLS = tuple(
    PendingToolCall(id=call, name="ask_person", args={"question": f"{call}?"}) for call in ("c1", "c2")
)


class TwoQuestionsAgent(Agent):
    """An agent that asks two questions at once."""

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Ask."""
        yield ApprovalRequired(calls=CALLS, state=b"")


async def wait_for_two_questions(harness: TurnWorkerHarness) -> tuple[Turn, Sequence[Approval]]:
    """Return a turn that waits for two answers, which are asked for."""
    turn = await harness.add_turn()
    async with harness.running(TwoQuestionsAgent()):
        await harness.wake()
        waiting = await harness.wait_for_state(turn, TurnState.WAITING)
    async with harness.database.read() as connection:
        return waiting, await store.list_for_turn(connection, turn.id)


async def until_waiting_or_done(database: Database, other: asyncio.Future[Approval]) -> None:
    """Wait until a transaction waits for a lock, or the other decision is made."""
    waiting = asyncio.ensure_future(until_waiting(database))
    both: set[asyncio.Future[Any]] = {waiting, other}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def test_the_last_of_two_decisions_at_once_continues_the_turn(
    database: Database, tmp_path: Path
) -> None:
    """Each would find the other one pending."""
    harness = await open_turn_worker(database, tmp_path)
    turn, (first, second) = await wait_for_two_questions(harness)
    deciding = Approvals(harness.transactions)
    async with harness.transactions.begin("test") as tx:
        await decide_in(tx, turn.account, first.id, approved=False, by="ann")
        other = asyncio.ensure_future(deciding.decide(turn.account, second.id, approved=False, by="bob"))
        await until_waiting_or_done(database, other)
    await other
    async with database.read() as connection:
        found = await turns.get(connection, turn.account, turn.id)
    assert found is not None
    assert found.state is TurnState.QUEUED


async def test_a_decision_waits_for_the_end_of_its_turn(database: Database, tmp_path: Path) -> None:
    """The turn ends, and the late decision is refused: neither fails because of the other."""
    harness = await open_turn_worker(database, tmp_path)
    turn, (first, _) = await wait_for_two_questions(harness)
    async with harness.transactions.begin("test") as tx:
        assert await turns.request_cancel(tx.connection, turn.id) is TurnState.WAITING
        deciding = asyncio.ensure_future(
            Approvals(harness.transactions).decide(turn.account, first.id, approved=False, by="ann")
        )
        await until_waiting_or_done(database, deciding)
        await store.expire_for_turn(tx.connection, turn.id)
    with pytest.raises(AlreadyDecided):
        await deciding
