"""The job reconciler: asks sandboxes about running jobs whose completion callback may never arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from delivery.background import log_errors
from delivery.database.clock import utc_now
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.deliveries.transactions import Transactions
from delivery.fair_gate import FairGate, working_for
from delivery.fair_scheduler import PoolSize
from gateway.environments.job_replicas import RunsElsewhere
from gateway.environments.resolver import EnvironmentResolver
from gateway.jobs.progress import JobProgress
from gateway.jobs.settlement import JobSettlement, age_seconds, failed_end
from gateway.store.job_state import LOST_AFTER, JobEnd, JobReason, JobState
from gateway.store.turn_state import FINAL
from gateway.store.turns import jobs as store
from gateway.store.turns import turns
from gateway.store.turns.jobs import Job
from sandbox.errors import ProviderUnreachable, SandboxError, SandboxGone
from sandbox.model import BackgroundJobState, JobReport
from sandbox.port import Sandbox

log = structlog.get_logger(__name__)

START_TIMEOUT = 30.0
"""Seconds after which a job that its sandbox does not know is settled.

It is `never_started`, or `sandbox_recreated` if it was started.
"""

ELSEWHERE_SECONDS = 3600.0
"""Seconds after which a job of another replica is marked as unreachable, for its replica to contradict."""

AWAY_SECONDS = 600.0
"""Seconds for which a job's replica must be away before this one reports the job from its own data directory.

That has the job if it is a copy of the other replica's, as after a restore, or was moved to another machine.
"""

CHECKS_AT_ONCE = 32
"""Jobs that are checked at the same time, shared fairly by account."""

ANSWER_SECONDS = 300.0
"""Seconds in which a sandbox has to stop or report a job; providers have shorter limits of their own."""

GetJobSandbox = Callable[[Job], Awaitable[Sandbox]]
"""Return the sandbox that a job runs in, without creating it; raises SandboxError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedJobs:
    """Jobs of replicas that do not run any more, as far as this data directory has them."""

    is_away: Callable[[Job], Awaitable[bool]]
    """Return whether a job's replica does not run."""
    get_sandbox: GetJobSandbox
    """Return what this machine has of a job's sandbox; raises SandboxError."""


class JobReconciler:
    """Settles running jobs from their sandboxes' reports, and reports the progress of those that go on.

    Each job is checked by a task of its own. A sandbox that does not answer, or whose answer is an error that
    no provider declares, delays and ends no check but its own.

    A job that its sandbox does not know may still be started by its turn. The time until it is given up
    therefore runs only while this process runs, and only after its turn has ended; `clock` measures it.
    """

    def __init__(
        self,
        database: Database,
        get_sandbox: GetJobSandbox,
        settlement: JobSettlement,
        *,
        progress: JobProgress | None = None,
        copied: CopiedJobs | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._progress = progress
        self._copied = copied
        self._get_sandbox = get_sandbox
        self._settlement = settlement
        self._clock = clock
        self._unknown_since: dict[str, float] = {}
        self._elsewhere_since: dict[str, float] = {}
        self._away_since: dict[str, float] = {}
        self._gate = FairGate(PoolSize(places=CHECKS_AT_ONCE))
        self._checks: dict[str, asyncio.Task[None]] = {}

    async def run(self, stop: asyncio.Event, *, interval: float) -> None:
        """Check all running jobs every `interval` seconds until stopped; no job is checked twice at once."""
        try:
            while not stop.is_set():
                with log_errors("jobs.reconcile"):
                    await self._start_checks()
                try:
                    async with asyncio.timeout(interval):
                        await stop.wait()
                except TimeoutError:
                    continue
        finally:
            await self._cancel_checks()

    async def run_once(self) -> None:
        """Check all running jobs once."""
        await self._start_checks()
        if self._checks:
            await asyncio.wait(set(self._checks.values()))

    async def _start_checks(self) -> None:
        async with self._database.read() as connection:
            running = await store.list_running(connection)
        ids = {job.id for job in running}
        self._unknown_since = {job: since for job, since in self._unknown_since.items() if job in ids}
        self._elsewhere_since = {job: since for job, since in self._elsewhere_since.items() if job in ids}
        self._away_since = {job: since for job, since in self._away_since.items() if job in ids}
        if self._progress is not None:
            self._progress.keep_only(frozenset(ids))
        self._checks = {job: check for job, check in self._checks.items() if not check.done()}
        for job in running:
            if job.id not in self._checks:
                self._checks[job.id] = asyncio.create_task(self._check(job))

    async def _cancel_checks(self) -> None:
        for check in self._checks.values():
            check.cancel()
        if self._checks:
            await asyncio.wait(set(self._checks.values()))

    async def _check(self, job: Job) -> None:
        with log_errors("job.check", job=job.id), working_for(job.account):
            async with self._gate.hold():
                try:
                    await self._reconcile_one(job)
                except RunsElsewhere as error:
                    await self._leave_to_owner(job, error)
                except SandboxGone as error:
                    await self._sandbox_gone(job, error)
                except SandboxError as error:
                    await self._mark_unreachable(job, error)

    async def _reconcile_one(self, job: Job) -> None:
        await self._apply(job, await self._get_report(job, self._get_sandbox))

    async def _apply(self, job: Job, report: JobReport) -> None:
        if job.unreachable_since is not None:
            async with self._database.begin() as connection:
                await store.set_unreachable_since(connection, job.id, since=None)
            log.info("job.provider_reached", job=job.id, since=job.unreachable_since.isoformat())
        self._elsewhere_since.pop(job.id, None)
        if report.state is not BackgroundJobState.UNKNOWN:
            self._unknown_since.pop(job.id, None)
            await self._settlement.apply_report(job, report)
            if report.state is BackgroundJobState.RUNNING and self._progress is not None:
                await self._progress.report(job, report.output)
        elif await self._will_not_start(job):
            was_started = job.spawned_at is not None
            reason = JobReason.SANDBOX_RECREATED if was_started else JobReason.NEVER_STARTED
            await self._settlement.settle(job, failed_end(reason, b""))

    async def _get_report(self, job: Job, get_sandbox: GetJobSandbox) -> JobReport:
        """Stop the job if that was asked for, and return its report.

        Raises SandboxError, whatever fails: a job whose sandbox can never be asked is lost in the end.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                sandbox = await get_sandbox(job)
                if job.stop_requested_at is not None or job.reason is not None:
                    await sandbox.stop(job.id)
                return await sandbox.report(job.id)
        except (SandboxError, DatabaseUnavailable):
            raise
        except TimeoutError:
            raise ProviderUnreachable(f"the sandbox did not answer within {ANSWER_SECONDS:g} s") from None
        except Exception as error:  # of a provider that does not keep to the port
            log.exception("job.report_failed", job=job.id)
            raise ProviderUnreachable(f"unexpected error: {type(error).__name__}: {error}"[:500]) from error

    async def _will_not_start(self, job: Job) -> bool:
        """Return whether nothing has started a job for START_TIMEOUT seconds after its turn's end."""
        async with self._database.read() as connection:
            turn = await turns.get(connection, job.account, job.turn)
        if turn is not None and turn.state not in FINAL:
            self._unknown_since.pop(job.id, None)
            return False
        now = self._clock()
        return now - self._unknown_since.setdefault(job.id, now) > START_TIMEOUT

    async def _sandbox_gone(self, job: Job, error: SandboxGone) -> None:
        """Settle a job whose instance is gone; one that is still being started gets a new instance."""
        if job.spawned_at is not None or await self._will_not_start(job):
            log.warning("job.sandbox_gone", job=job.id, error=str(error))
            await self._settlement.settle(job, failed_end(JobReason.SANDBOX_RECREATED, b""))

    async def _leave_to_owner(self, job: Job, error: RunsElsewhere) -> None:
        """Leave a job to the replica that runs it.

        After an hour the job is marked as unreachable, which its replica undoes if it lives. A job that stays
        marked is lost in the end, as with any provider that does not answer. If its replica is away and this
        data directory has the job, the job is this replica's.
        """
        report = await self._get_copied_report(job)
        if report is not None:
            await self._apply(job, report)
            return
        since = self._elsewhere_since.setdefault(job.id, self._clock())
        if job.unreachable_since is not None or self._clock() - since > ELSEWHERE_SECONDS:
            self._elsewhere_since.pop(job.id)
            await self._mark_unreachable(job, error)

    async def _get_copied_report(self, job: Job) -> JobReport | None:
        """Return the report of a job whose replica is away; None if this data directory does not have it."""
        if self._copied is None or not await self._copied.is_away(job):
            self._away_since.pop(job.id, None)
            return None
        now = self._clock()
        if now - self._away_since.setdefault(job.id, now) <= AWAY_SECONDS:
            return None
        try:
            report = await self._get_report(job, self._copied.get_sandbox)
        except SandboxError:
            return None
        return None if report.state is BackgroundJobState.UNKNOWN else report

    async def _mark_unreachable(self, job: Job, error: SandboxError) -> None:
        since = job.unreachable_since or utc_now()
        log.warning("job.provider_unreachable", job=job.id, since=since.isoformat(), error=str(error))
        if age_seconds(since) > LOST_AFTER:
            lost = JobEnd(state=JobState.LOST, reason=JobReason.PROVIDER_UNREACHABLE)
            await self._settlement.settle(job, lost)
        elif job.unreachable_since is None:
            async with self._database.begin() as connection:
                await store.set_unreachable_since(connection, job.id, since=since)


def open_reconciler(
    transactions: Transactions, resolver: EnvironmentResolver, settlement: JobSettlement, *, after: float
) -> JobReconciler:
    """Return the reconciler; jobs that run longer than `after` seconds are reported (0: none)."""
    progress = JobProgress(transactions, after=after)
    copied = CopiedJobs(is_away=resolver.job_replicas.is_away, get_sandbox=resolver.local_sandbox_of_job)
    return JobReconciler(
        transactions.database, resolver.sandbox_of_job, settlement, progress=progress, copied=copied
    )
