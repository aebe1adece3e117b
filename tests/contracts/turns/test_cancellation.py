"""H2: a turn ends at once where it runs, and soon when it was cancelled on another replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from delivery.database.engine import Database
from delivery.events import outbox
from delivery.events.event import EventType
from gateway.agents.port import Agent, AgentEvent, Finished, Tools, TurnInput
from gateway.jobs.jobs import Jobs
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns
from gateway.store.turns.job_calls import JobCall
from gateway.store.turns.turns import Turn
from gateway.turns.cancellation import CancellationWatcher
from ingress_harness import IngressHarness, open_ingress_harness
from turn_worker import open_turn_worker


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """A conversation to have turns in."""
    return await open_ingress_harness(database)


async def test_a_turn_performed_here_ends_without_waiting_for_a_look(harness: IngressHarness) -> None:
    """With an hour between polls a local cancel still works; another turn goes on."""
    cancels = CancellationWatcher(harness.database, interval=3600.0)
    ended: list[str] = []
    with (
        cancels.track("trn_1", lambda: ended.append("first")),
        cancels.track("trn_2", lambda: ended.append("second")),
    ):
        cancels.cancel("trn_1")
        cancels.cancel("trn_of_another_replica")
    cancels.cancel("trn_2")
    assert ended == ["first"]


async def test_a_turn_cancelled_elsewhere_is_looked_for(harness: IngressHarness) -> None:
    """A cancel from another replica is found by the next poll."""
    await harness.send_message("work")
    running = await harness.start_first_turn()
    cancels = CancellationWatcher(harness.database, interval=0.01)
    wanted, stop = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(cancels.run(stop))
        with cancels.track(running.id, wanted.set):
            async with harness.database.begin() as connection:
                await turns.request_cancel(connection, running.id)
            await wanted.wait()
        stop.set()


async def test_the_first_reason_is_kept(harness: IngressHarness) -> None:
    """A turn that was superseded and is then stopped ended because it was superseded."""
    await harness.send_message("work")
    (turn,) = await harness.list_open_turns()
    async with harness.database.begin() as connection:
        await turns.request_cancel(connection, turn.id, reason="superseded")
        await turns.request_cancel(connection, turn.id, reason="stopped")
        assert await turns.cancel_reason(connection, turn.id) == "superseded"


class JobStarter(Agent):
    """An agent that starts a job, and then does not end."""

    def __init__(self, jobs: Jobs, turn: Turn) -> None:
        self._jobs = jobs
        self._turn = turn
        self.has_started = asyncio.Event()

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Start a job and wait for ever."""
        turn = self._turn
        call = JobCall(
            job="job_1",
            account=turn.account,
            tool="deploy",
            server=None,
            args={},
            repeatable=False,
            attempt=1,
        )
        await self._jobs.record_call(turn, call, "deploy now")
        self.has_started.set()
        await asyncio.Event().wait()
        yield Finished(output="")


async def test_a_cancelled_turn_says_which_jobs_it_has_started(database: Database, tmp_path: Path) -> None:
    """A job outlives its turn: its result would come without an announcement."""
    harness = await open_turn_worker(database, tmp_path)
    turn = await harness.add_turn("start it")
    agent = JobStarter(harness.jobs, turn)
    async with harness.running(agent) as worker:
        await harness.wake()
        await agent.has_started.wait()
        async with database.begin() as connection:
            await turns.request_cancel(connection, turn.id)
        worker.cancel_local(turn.id)
        await harness.wait_for_state(turn, TurnState.CANCELLED)
    async with database.read() as connection:
        events = await outbox.list_for_turn(connection, turn.id)
    said = [one.data["text"] for one in events if one.type is EventType.MESSAGE_COMPLETED]
    assert said == ["The turn started job job_1 `deploy now`; its result comes here when it is done."]
