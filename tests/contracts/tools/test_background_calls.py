"""Tool calls as background jobs: of installed functions, within the limit, until they are stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest
from sqlalchemy import update

from delivery.database.engine import Database
from gateway.agents.port import PendingToolCall, ToolResult
from gateway.conversations.approvals import request
from gateway.conversations.call_binding import unknown_target, with_addresses
from gateway.environments.fingerprint import fingerprint
from gateway.jobs.jobs import Jobs
from gateway.jobs.progress import JobProgress
from gateway.store.job_state import JobState
from gateway.store.tables import steps
from gateway.store.turns import approvals, job_calls, turns
from gateway.store.turns import jobs as job_store
from gateway.store.turns.job_calls import JobCall
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn
from gateway.tools.background_calls import BackgroundCalls
from gateway.tools.call_runner import CallRunner
from gateway.tools.external.functions import function_tool, tool
from gateway.tools.external.installed_tools import InstalledTools
from gateway.tools.external_tools import no_external_tools
from gateway.tools.tool import Tool
from migrated import migrated_sqlite
from turn_worker import TurnWorkerHarness, open_turn_worker

WAIT_SECONDS = 20.0


@dataclass
class Dovecot:
    """The functions, the events that hold them up, and how often they were called and cancelled."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    called: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0
    description: str = "Wait as a job that a person approved."

    def tools(self) -> Mapping[str, Tool]:
        """Return the functions as tools."""

        async def hold() -> str:
            self.calls += 1
            self.called.set()
            try:
                await self.opened.wait()
            finally:
                self.ended.set()
            return "the doves are home"

        @tool(approval="never", background=True)
        async def later() -> str:
            """Wait as a job."""
            return await hold()

        @tool(approval="never", background_after=0.01)
        async def maybe(*, quick: bool = False) -> str:
            """Wait, perhaps as a job."""
            return "at once" if quick else await hold()

        @tool(approval="never", background=True, repeatable=True)
        async def harmless() -> str:
            """Wait as a job that can be repeated."""
            return await hold()

        @tool(approval="always", background=True, repeatable=True)
        async def approved() -> str:
            return await hold()

        approved.__doc__ = self.description
        return {one.__name__: function_tool(one.__name__, one) for one in (later, maybe, harmless, approved)}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TurnWorkerHarness]:
    """An account with one agent."""
    database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
    yield await open_turn_worker(database, tmp_path)
    await database.close()


class CallProcess:
    """A process that makes calls, until `kill` or the end of its block."""

    def __init__(self, harness: TurnWorkerHarness, dovecot: Dovecot, *, limit: int = 10) -> None:
        self.harness = harness
        jobs = Jobs(
            harness.transactions,
            harness.environment_resolver,
            harness.vault,
            lambda _name: None,
            settlement=harness.settlement,
            max_running=limit,
        )
        harness.jobs = jobs
        open_tools = InstalledTools(dovecot.tools(), no_external_tools).open
        self.calls = BackgroundCalls(
            leases=harness.leases,
            jobs=jobs,
            settlement=harness.settlement,
            progress=JobProgress(harness.transactions, after=0),
            runner=CallRunner(
                harness.database, harness.environment_resolver, jobs, harness.file_collector, open_tools
            ),
            drain_timeout=0,
            interval=0.05,
        )
        self.stop = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.calls.run(self.stop))
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.stop.set()
        await self._running

    async def call(self, turn: Turn, name: str, call: str = "call-1", **args: Any) -> ToolResult:
        """Call a tool in a turn."""
        async with self.harness.open_tools(self.calls.open, turn) as (tools, _external):
            return await tools.call(name, args, call=call)

    async def ended(self, job: str) -> Job:
        """Wait until a job has ended."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                found = await self.job(job)
                if found.state is not JobState.RUNNING:
                    return found
                await asyncio.sleep(0.01)

    async def job(self, job: str) -> Job:
        """Return a job."""
        async with self.harness.database.read() as connection:
            found = await job_store.get_by_id(connection, job)
        assert found is not None
        return found

    async def follow_up(self, job: str) -> Turn:
        """Return the turn that a job's end started."""
        async with self.harness.database.read() as connection:
            (found,) = [
                one for one in await turns.list_open(connection, self.harness.conversation) if one.job == job
            ]
        return found


@pytest.mark.parametrize("name", ["later", "maybe"])
async def test_a_call_becomes_a_job_and_its_result_comes_home(harness: TurnWorkerHarness, name: str) -> None:
    """The model gets the job's id; the result settles the job and starts the follow-up turn."""
    dovecot = Dovecot()
    async with CallProcess(harness, dovecot) as gateway:
        turn = await harness.add_turn(running=True)
        started = await gateway.call(turn, name)
        job = started.detail["resultId"]
        async with harness.database.begin() as connection:  # as if the process had died before it recorded it
            await connection.execute(update(steps).values(state="running", result=None))
        again = await gateway.call(replace(turn, attempt=2), name)
        assert (again.detail, (await gateway.job(job)).command) == (started.detail, f"{name} {{}}")
        dovecot.opened.set()
        ended = await gateway.ended(job)
        assert (ended.state, ended.output, ended.exit_code) == (
            JobState.COMPLETED,
            "the doves are home",
            None,
        )
        assert "the doves are home" in (await gateway.follow_up(job)).input
    assert dovecot.calls == 1


async def test_a_quick_call_is_no_job(harness: TurnWorkerHarness) -> None:
    """Its result is the call's, and no job is recorded; the description mentions both to the model."""
    async with CallProcess(harness, Dovecot()) as gateway:
        turn = await harness.add_turn(running=True)
        assert (await gateway.call(turn, "maybe", quick=True)).content == "at once"
        async with harness.database.read() as connection:
            assert await job_store.list_for_account(connection, harness.agent.account) == []
        async with harness.open_tools(gateway.calls.open, turn) as (tools, _external):
            specs = {one.name: one.description for one in tools.list()}
    assert "longer than 0.01 s" in specs["maybe"]
    assert "its resultId at once" in specs["later"]
    assert "async_status" in specs


async def test_a_stopped_job_cancels_its_call(harness: TurnWorkerHarness) -> None:
    """The function is cancelled; the job is stopped and says that it may have had an effect."""
    dovecot = Dovecot()
    async with CallProcess(harness, dovecot) as gateway:
        started = await gateway.call(await harness.add_turn(running=True), "later")
        await dovecot.called.wait()
        await harness.jobs.stop(await gateway.job(started.detail["resultId"]))
        await dovecot.ended.wait()
        ended = await gateway.ended(started.detail["resultId"])
        assert ended.state is JobState.STOPPED
        assert "may have had an effect" in (await gateway.follow_up(ended.id)).input


async def test_a_cancelled_turn_cancels_a_call_that_is_no_job(harness: TurnWorkerHarness) -> None:
    """A call that waits within its turn ends with it."""
    dovecot = Dovecot()
    async with CallProcess(harness, dovecot, limit=1) as gateway:
        await gateway.call(await harness.add_turn(running=True), "later")
        await dovecot.called.wait()
        dovecot.called.clear()
        waiting = asyncio.create_task(gateway.call(await harness.add_turn(running=True), "maybe"))
        await dovecot.called.wait()
        waiting.cancel()
        await dovecot.ended.wait()
        await asyncio.wait({waiting})
    assert waiting.cancelled()


async def test_an_account_has_a_limited_number_of_calls(harness: TurnWorkerHarness) -> None:
    """Above the limit a job is refused, and a slow call stays in its turn."""
    dovecot = Dovecot()
    async with CallProcess(harness, dovecot, limit=1) as gateway:
        turn = await harness.add_turn(running=True)
        first = await gateway.call(turn, "later")
        refused = await gateway.call(turn, "later", "call-2")
        assert not refused.ok
        assert "which is its limit" in refused.content
        await dovecot.called.wait()
        dovecot.called.clear()
        slow = asyncio.create_task(gateway.call(turn, "maybe", "call-3"))
        await dovecot.called.wait()
        dovecot.opened.set()
        assert (await slow).content == "the doves are home"
        await gateway.ended(first.detail["resultId"])


@pytest.mark.parametrize(("name", "state", "calls"), [("later", "failed", 1), ("harmless", "completed", 2)])
async def test_a_call_of_a_process_that_died(
    harness: TurnWorkerHarness, name: str, state: str, calls: int
) -> None:
    """A call in flight is repeated if that does no harm; else its outcome is unknown, in clear words."""
    dovecot = Dovecot()
    async with CallProcess(harness, dovecot) as gateway:
        started = await gateway.call(await harness.add_turn(running=True), name)
        await dovecot.called.wait()
    dovecot.opened.set()
    async with CallProcess(harness, dovecot) as gateway:
        ended = await gateway.ended(started.detail["resultId"])
        assert (str(ended.state), dovecot.calls) == (state, calls)
        if state == "failed":
            assert ended.reason == "outcome_unknown"
            assert "not repeated" in (await gateway.follow_up(ended.id)).input


@pytest.mark.parametrize("is_changed", [False, True])
async def test_an_approved_call_is_not_resumed_as_something_else(
    harness: TurnWorkerHarness, *, is_changed: bool
) -> None:
    """If the tool of that name was changed since the approval, the job fails with this reason."""
    turn, dovecot = await harness.add_turn(running=True), Dovecot()
    call = PendingToolCall(id="call-1", name="approved", args={})
    async with CallProcess(harness, dovecot) as gateway:
        async with harness.open_tools(gateway.calls.open, turn) as (tools, _external):
            targets = with_addresses(unknown_target, tools.call_address, tools.call_definition)
            environment = await harness.environment_resolver.resolve(harness.agent, turn.conversation)
            async with harness.transactions.begin("test") as tx:
                await request(tx, turn, [call], fingerprint(environment), targets=targets)
                (asked,) = await approvals.list_for_turn(tx.connection, turn.id)
                assert await approvals.decide(tx.connection, asked.id, state="approved", by="bob", comment="")
        started = await gateway.call(turn, "approved")
        await dovecot.called.wait()
    later = Dovecot(description="Sell the doves.") if is_changed else Dovecot()
    later.opened.set()
    async with CallProcess(harness, later) as gateway:
        ended = await gateway.ended(started.detail["resultId"])
    assert (str(ended.state), later.calls) == (("failed", 0) if is_changed else ("completed", 1))
    assert ("after a person approved this call" in ended.output) is is_changed


async def test_a_call_of_a_removed_tool_fails(harness: TurnWorkerHarness) -> None:
    """The job of a tool that is not installed any more ends, and says so."""
    async with CallProcess(harness, Dovecot()) as gateway:
        turn = await harness.add_turn(running=True)
        call = JobCall(
            job="job_gone",
            account=turn.account,
            tool="gone",
            server=None,
            args={},
            repeatable=False,
            attempt=0,
        )
        await harness.jobs.record_call(turn, call, "gone")
        ended = await gateway.ended("job_gone")
        assert ended.output == "the agent has no tool gone now."
        async with harness.database.read() as connection:
            assert await job_calls.list_running(connection) == []
