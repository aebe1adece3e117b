"""The job reconciler: asks sandboxes about running jobs whose completion callback may never arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from delivery.database.clock import utc_now
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.deliveries.transactions import Transactions
from gateway.environments.job_replicas import RunsElsewhere
from gateway.environments.resolver import EnvironmentResolver
from gateway.jobs.progress import JobProgress
from gateway.jobs.settlement import JobSettlement, age_seconds, failed_end
from gateway.store.job_state import LOST_AFTER, JobEnd, JobState
from gateway.store.turn_state import FINAL
from gateway.store.turns import jobs as store
from gateway.store.turns import turns
from gateway.store.turns.jobs import Job
from sandbox.errors import SandboxError, SandboxGone
from sandbox.model import BackgroundJobState
from sandbox.port import Sandbox

log = structlog.get_logger(__name__)

START_TIMEOUT = 30.0
"""Seconds after which a job that its sandbox does not know is settled as `never_started`."""

ELSEWHERE_SECONDS = 3600.0
"""Seconds after which a job of another replica is marked as unreachable, for its replica to contradict."""

GetJobSandbox = Callable[[Job], Awaitable[Sandbox]]
"""Return the sandbox that a job runs in, without creating it; raises SandboxError."""


class JobReconciler:
    """Settles running jobs from their sandboxes' reports, and reports the progress of those that go on.

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._progress = progress
        self._get_sandbox = get_sandbox
        self._settlement = settlement
        self._clock = clock
        self._unknown_since: dict[str, float] = {}
        self._elsewhere_since: dict[str, float] = {}

    async def run(self, stop: asyncio.Event, *, interval: float) -> None:
        """Check all running jobs every `interval` seconds until stopped."""
        while not stop.is_set():
            try:
                await self.run_once()
            except DatabaseUnavailable as error:
                log.warning("jobs.database_unavailable", error=str(error))
            except Exception:  # the outermost loop of the reconciler: the next pass must run
                log.exception("jobs.reconcile_failed")
            try:
                async with asyncio.timeout(interval):
                    await stop.wait()
            except TimeoutError:
                continue

    async def run_once(self) -> None:
        """Check all running jobs once."""
        async with self._database.read() as connection:
            running = await store.list_running(connection)
        ids = {job.id for job in running}
        self._unknown_since = {job: since for job, since in self._unknown_since.items() if job in ids}
        self._elsewhere_since = {job: since for job, since in self._elsewhere_since.items() if job in ids}
        if self._progress is not None:
            self._progress.keep_only(frozenset(ids))
        for job in running:
            try:
                await self._reconcile_one(job)
            except RunsElsewhere as error:
                await self._leave_to_owner(job, error)
            except SandboxGone as error:
                await self._sandbox_gone(job, error)
            except SandboxError as error:
                await self._mark_unreachable(job, error)

    async def _reconcile_one(self, job: Job) -> None:
        sandbox = await self._get_sandbox(job)
        if job.stop_requested_at is not None or job.reason is not None:
            await sandbox.stop(job.id)
        report = await sandbox.report(job.id)
        if job.unreachable_since is not None:
            async with self._database.begin() as connection:
                await store.set_unreachable_since(connection, job.id, since=None)
        if report.state is not BackgroundJobState.UNKNOWN:
            await self._settlement.apply_report(job, report)
            if report.state is BackgroundJobState.RUNNING and self._progress is not None:
                await self._progress.report(job, report.output)
        elif await self._will_not_start(job):
            await self._settlement.settle(job, failed_end("never_started", b""))

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
            await self._settlement.settle(job, failed_end("sandbox_recreated", b""))

    async def _leave_to_owner(self, job: Job, error: RunsElsewhere) -> None:
        """Leave a job to the replica that runs it.

        After an hour the job is marked as unreachable, which its replica undoes if it lives. A job that stays
        marked is lost in the end, as with any provider that does not answer.
        """
        since = self._elsewhere_since.setdefault(job.id, self._clock())
        if job.unreachable_since is not None or self._clock() - since > ELSEWHERE_SECONDS:
            self._elsewhere_since.pop(job.id)
            await self._mark_unreachable(job, error)

    async def _mark_unreachable(self, job: Job, error: SandboxError) -> None:
        since = job.unreachable_since or utc_now()
        log.warning("job.provider_unreachable", job=job.id, since=since.isoformat(), error=str(error))
        if age_seconds(since) > LOST_AFTER:
            await self._settlement.settle(job, JobEnd(state=JobState.LOST, reason="provider_unreachable"))
        elif job.unreachable_since is None:
            async with self._database.begin() as connection:
                await store.set_unreachable_since(connection, job.id, since=since)


def open_reconciler(
    transactions: Transactions, resolver: EnvironmentResolver, settlement: JobSettlement, *, after: float
) -> JobReconciler:
    """Return the reconciler; jobs that run longer than `after` seconds are reported (0: none)."""
    progress = JobProgress(transactions, after=after)
    return JobReconciler(transactions.database, resolver.sandbox_of_job, settlement, progress=progress)
