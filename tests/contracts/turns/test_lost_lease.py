"""A worker that loses its lease on a conversation ends the attempt; the turn is run again (G4, G5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from delivery.database.engine import Database
from gateway.agents.port import Agent, AgentEvent, Finished, MessageCompleted, Tools, TurnInput
from gateway.store.turn_state import TurnState
from turn_worker import open_turn_worker


class BlockingAgent(Agent):
    """An agent whose first attempt never ends by itself; the second one answers."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.interrupted = asyncio.Event()

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Block in the first attempt, and answer in later ones."""
        if turn_input.attempt == 1:
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.interrupted.set()
        yield MessageCompleted(text="done")
        yield Finished(output="done")


async def test_a_turn_is_interrupted_when_its_lease_is_lost(database: Database, tmp_path: Path) -> None:
    """The attempt is cancelled at once, and the next holder of the lease runs the turn to its end."""
    harness, agent = await open_turn_worker(database, tmp_path), BlockingAgent()
    turn = await harness.add_turn()
    async with harness.running(agent):
        await harness.wake()
        async with asyncio.timeout(10):
            await agent.started.wait()
            harness.leases.revoke(f"t:{harness.conversation}")
            await agent.interrupted.wait()
        ended = await harness.wait_for_state(turn, TurnState.COMPLETED)
    assert ended.attempt == 2
