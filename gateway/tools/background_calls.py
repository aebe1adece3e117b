"""Tool calls as background jobs: recorded, made by one process at a time, settled; resumed after a crash.

A call that had begun when its process died is repeated only if a repeat does no harm. Else its job ends as
failed with the reason `outcome_unknown`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from delivery.background import run_shielded, wait_for_any
from delivery.broker.port import Lease, Leases
from delivery.database.engine import DatabaseUnavailable
from delivery.errors import DeliveryError, LeaseBusy
from delivery.fair_gate import FairGate, working_for
from delivery.fair_scheduler import PoolSize
from gateway.agents.port import ToolResult
from gateway.jobs.jobs import Jobs, TooManyJobs
from gateway.jobs.progress import JobProgress
from gateway.jobs.settlement import JobSettlement
from gateway.store.job_state import JobEnd, JobReason, JobState
from gateway.store.turns import job_calls
from gateway.store.turns import jobs as job_store
from gateway.store.turns.job_calls import JobCall
from gateway.store.turns.jobs import Job
from gateway.tools.call_runner import CallOrigin, CallRunner
from gateway.tools.external_tools import ExternalTools
from gateway.tools.tool import Tool, ToolContext

log = structlog.get_logger(__name__)

INTERVAL = 2.0
"""Seconds between two checks for calls that no process makes or whose jobs were stopped elsewhere."""

PLACES = 100
"""Calls that one process resumes or starts at once."""

MAX_ATTEMPTS = 5
"""Beginnings of a repeatable call; one that was interrupted more often may be what ends the gateway."""

MAX_COMMAND = 1000
"""Characters of a call as people see it in lists of jobs."""

UNKNOWN = (
    "The gateway ended while this call was in flight, so it may have had an effect, in part or whole. It was "
    "not repeated. Check what it left before you make it again."
)


NO_ORIGIN = "The agent or the turn that made this call was deleted."


@dataclass(eq=False, kw_only=True)
class _LiveCall:
    """A call that this process makes. The turn gets `answer`: the call's result, or the id of its job."""

    call: JobCall
    answer: asyncio.Future[ToolResult] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    task: asyncio.Task[None] | None = None
    job: Job | None = None
    is_job: bool = False
    has_result: bool = False

    def take_result(self) -> bool:
        """Note that there is a result; returns whether it is the job's."""
        self.has_result = True
        return self.is_job

    def give(self, result: ToolResult) -> None:
        """Answer the turn, unless it has an answer or is gone."""
        if not self.answer.done():
            self.answer.set_result(result)


class BackgroundCalls:
    """Makes the calls of tools that may become jobs, and resumes those of processes that died."""

    def __init__(
        self,
        *,
        leases: Leases,
        jobs: Jobs,
        settlement: JobSettlement,
        progress: JobProgress,
        runner: CallRunner,
        drain_timeout: float,
        interval: float = INTERVAL,
    ) -> None:
        self._leases = leases
        self._jobs = jobs
        self._settlement = settlement
        self._progress = progress
        self._runner = runner
        self._drain_timeout = drain_timeout
        self._interval = interval
        self._live: dict[str, _LiveCall] = {}
        self._gate = FairGate(PoolSize(places=PLACES))
        self._group: asyncio.TaskGroup | None = None
        self._wake = asyncio.Event()
        jobs.on_call_stopped = self.cancel

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[ExternalTools]:
        """Yield a turn's tools; calls of those that say so become jobs."""
        async with self._runner.open_tools(context) as external:
            tools = {name: self._as_job_tool(name, one) for name, one in external.tools.items()}
            yield replace(external, tools=tools)

    def _as_job_tool(self, name: str, tool: Tool) -> Tool:
        if tool.jobs is None:
            return tool
        how = replace(tool.jobs, exists=self._exists)

        async def run(context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
            call = JobCall(
                job=key,
                account=context.turn.account,
                tool=name,
                server=how.server,
                args=args,
                repeatable=tool.idempotent,
                attempt=0,
            )
            if how.after is None:
                return await self._start(context, call)
            if self._group is None or context.agent is None:
                return await tool.run(context, args, key)
            origin = CallOrigin(turn=context.turn, agent=context.agent)
            return await self._make(origin, replace(call, attempt=1), how.after)

        described = tool.spec

        return replace(
            tool,
            spec=lambda context: _with_note(described(context), how.note),
            run=run,
            jobs=how,
            idempotent=tool.idempotent or how.after is None,
        )

    async def _get_job(self, key: str) -> Job | None:
        async with self._jobs.read() as connection:
            return await job_store.get_by_id(connection, key)

    async def _exists(self, key: str) -> bool:
        return await self._get_job(key) is not None

    async def _start(self, context: ToolContext, call: JobCall) -> ToolResult:
        """Record a call that is a job from its beginning."""
        try:
            job = await self._jobs.record_call(context.turn, call, _describe(call))
        except TooManyJobs as error:
            return ToolResult(ok=False, content=str(error))
        self._wake.set()
        return _started(job)

    async def _make(self, origin: CallOrigin, call: JobCall, after: float) -> ToolResult:
        """Make a call, and return its result, or its job if it takes longer than `after` seconds."""
        earlier = await self._get_job(call.job)
        if earlier is not None:
            return _started(earlier)
        live = _LiveCall(call=call)
        self._begin(live, self._run_with_turn(live, origin, after))
        try:
            return await run_shielded(live.answer)
        finally:
            if not live.is_job and live.task is not None:  # the turn was cancelled
                live.task.cancel()

    def _begin(self, live: _LiveCall, work: Any) -> None:
        assert self._group is not None
        self._live[live.call.job] = live
        live.task = self._group.create_task(self._guarded(live, work))

    async def _guarded(self, live: _LiveCall, work: Any) -> None:
        """Run the task of a call; no failure of it ends the others."""
        try:
            with working_for(live.call.account):
                await work
        except (DeliveryError, DatabaseUnavailable) as error:
            log.warning("call.delayed", job=live.call.job, error=error)
        except Exception:  # the outermost frame of the call: others go on
            log.exception("call.not_made", job=live.call.job)
        finally:
            self._live.pop(live.call.job, None)
            live.give(ToolResult(ok=False, content="the gateway stopped while this ran"))

    async def _run_with_turn(self, live: _LiveCall, origin: CallOrigin, after: float) -> None:
        """Make a call for its turn; one that takes longer becomes a job, if the account may have more."""
        work = asyncio.create_task(self._runner.run(origin, live.call, take_result=live.take_result))
        try:
            await asyncio.wait({work}, timeout=after)
            if not work.done() and not live.has_result and await self._go_on_as_job(live, origin, work):
                return
            live.give(await work)
        finally:
            await _end(work)

    async def _go_on_as_job(
        self, live: _LiveCall, origin: CallOrigin, work: asyncio.Task[ToolResult]
    ) -> bool:
        """Record a call that is in flight and settle it later; returns False if it cannot be recorded."""
        live.is_job = True
        try:
            async with self._leases.acquire(_lease_name(live.call.job)) as lease:
                live.job = await self._jobs.record_call(origin.turn, live.call, _describe(live.call))
                live.give(_started(live.job))
                await self._settle_when_done(live, work, lease)
        except (TooManyJobs, DeliveryError, DatabaseUnavailable) as error:
            if live.job is not None:
                raise
            log.info("call.kept_in_turn", job=live.call.job, error=str(error))
            live.is_job = False
            return False
        return True

    async def _settle_when_done(self, live: _LiveCall, work: asyncio.Task[ToolResult], lease: Lease) -> None:
        """Wait for a call and settle its job; a call whose lease is lost is left to the next holder."""
        lost = asyncio.create_task(lease.wait_lost())
        try:
            await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await self._settle(live.call, call_end(work.result()))
        finally:
            await _end(work, lost)

    async def _settle(self, call: JobCall, end: JobEnd) -> None:
        while True:
            try:
                job = await self._get_job(call.job)
                if job is not None and job.state is JobState.RUNNING:
                    await self._settlement.settle(job, end)
            except DatabaseUnavailable as error:
                log.warning("call.settlement_delayed", job=call.job, error=error)
                await asyncio.sleep(self._interval)
            else:
                return

    def cancel(self, job: str) -> None:
        """Cancel a call whose job has ended, if this process makes it."""
        live = self._live.get(job)
        if live is not None and live.is_job and live.task is not None:
            live.task.cancel()

    async def run(self, stop: asyncio.Event) -> None:
        """Make and resume calls until stopped; those in flight then get `drain_timeout` seconds."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            while not stop.is_set():
                self._wake.clear()
                try:
                    await self._run_once()
                except (DatabaseUnavailable, DeliveryError) as error:
                    log.warning("calls.delayed", error=error)
                except Exception:  # the outermost loop of the calls: the next pass must run
                    log.exception("calls.failed")
                await wait_for_any(stop, self._wake, timeout=self._interval)
            self._group = None
            tasks = {live.task for live in self._live.values() if live.task is not None}
            if tasks:
                _done, late = await asyncio.wait(tasks, timeout=self._drain_timeout)
                for one in late:
                    one.cancel()

    async def _run_once(self) -> None:
        """Cancel the calls whose jobs have ended, and begin those that no process makes."""
        mine = {job for job, live in self._live.items() if live.job is not None}
        async with self._jobs.read() as connection:
            running = await job_calls.list_running(connection)
        ids = frozenset(call.job for call in running)
        for job in mine - ids:
            self.cancel(job)
        self._progress.keep_only(ids)
        for live in list(self._live.values()):
            if live.job is not None and live.call.job in ids:
                await self._progress.report(live.job, b"")
        free = [call for call in running if call.job not in self._live]
        held = await self._leases.list_held("call") if free else frozenset()
        for call in free:
            if _lease_name(call.job) not in held:
                live = _LiveCall(call=call, is_job=True)
                self._begin(live, self._resume(live))

    async def _resume(self, live: _LiveCall) -> None:
        """Make a recorded call that no process makes, or settle it if it began and may not be repeated."""
        async with self._gate.hold(live.call.account):
            with suppress(LeaseBusy):
                async with self._leases.acquire(_lease_name(live.call.job)) as lease:
                    call = await self._count_attempt(live.call.job)
                    origin = await self._runner.find_origin(call) if call is not None else None
                    if call is None:
                        return
                    if origin is None:
                        await self._settle(call, call_end(ToolResult(ok=False, content=NO_ORIGIN)))
                        return
                    live.job = await self._get_job(call.job)
                    work = asyncio.create_task(self._runner.run(origin, call, take_result=live.take_result))
                    await self._settle_when_done(live, work, lease)

    async def _count_attempt(self, job: str) -> JobCall | None:
        """Commit that a call begins; None if it must not: it has ended, or its outcome is unknown."""
        async with self._jobs.read() as connection:
            call = await job_calls.get_running(connection, job)
        if call is None:
            return None
        if call.attempt and (not call.repeatable or call.attempt >= MAX_ATTEMPTS):
            log.warning("call.outcome_unknown", job=job, tool=call.tool, attempts=call.attempt)
            await self._settle(
                call, JobEnd(state=JobState.FAILED, output=UNKNOWN, reason=JobReason.OUTCOME_UNKNOWN)
            )
            return None
        async with self._runner.database.begin() as connection:
            begun = await job_calls.begin(connection, call)
        return replace(call, attempt=call.attempt + 1) if begun else None


def call_end(result: ToolResult) -> JobEnd:
    """Return the end of a call's job."""
    return JobEnd(
        state=JobState.COMPLETED if result.ok else JobState.FAILED,
        output=result.content,
        truncated=bool(result.detail.get("truncated", False)),
        reason=None if result.ok else JobReason.CALL_FAILED,
    )


def _started(job: Job) -> ToolResult:
    shape = {"resultId": job.id, "state": str(job.state)}
    return ToolResult(ok=True, content=json.dumps(shape), detail=shape)


def _describe(call: JobCall) -> str:
    text = f"{call.tool} {json.dumps(dict(call.args), ensure_ascii=False)}".replace("\0", "\ufffd")
    return text if len(text) <= MAX_COMMAND else f"{text[: MAX_COMMAND - 1]}…"


def _with_note(spec: Any, note: str) -> Any:
    return replace(spec, description=f"{spec.description}\n{note}")


def _lease_name(job: str) -> str:
    return f"call:{job}"


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their ends."""
    for one in tasks:
        one.cancel()
    await asyncio.wait(tasks)
