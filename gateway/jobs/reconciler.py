"""The job reconciler: asks sandboxes about running jobs whose completion callback may never arrive."""

from __future__ import annotations

import asyncio

import structlog

from delivery.database.clock import utc_now
from delivery.database.engine import Database, DatabaseUnavailable
from gateway.environments.resolver import EnvironmentResolver
from gateway.jobs.settlement import START_TIMEOUT, JobSettlement, age_seconds, failed_end
from gateway.store.job_state import LOST_AFTER, JobEnd, JobState
from gateway.store.turns import jobs as store
from gateway.store.turns.jobs import Job
from sandbox.errors import SandboxError, SandboxGone

log = structlog.get_logger(__name__)


class JobReconciler:
    """Settles running jobs from their sandboxes' reports."""

    def __init__(
        self, database: Database, environment_resolver: EnvironmentResolver, settlement: JobSettlement
    ) -> None:
        self._database = database
        self._environment_resolver = environment_resolver
        self._settlement = settlement

    async def run(self, stop: asyncio.Event, *, interval: float) -> None:
        """Check all running jobs every `interval` seconds until stopped."""
        while not stop.is_set():
            try:
                await self._run_once()
            except DatabaseUnavailable as error:
                log.warning("jobs.database_unavailable", error=str(error))
            except Exception:  # the outermost loop of the reconciler: the next pass must run
                log.exception("jobs.reconcile_failed")
            try:
                async with asyncio.timeout(interval):
                    await stop.wait()
            except TimeoutError:
                continue

    async def _run_once(self) -> None:
        async with self._database.read() as connection:
            running = await store.list_running(connection)
        for job in running:
            try:
                await self._reconcile_one(job)
            except SandboxGone as error:
                await self._sandbox_gone(job, error)
            except SandboxError as error:
                await self._mark_unreachable(job, error)

    async def _reconcile_one(self, job: Job) -> None:
        sandbox = await self._environment_resolver.sandbox_of_job(job)
        if job.stop_requested_at is not None or job.reason is not None:
            await sandbox.stop(job.id)
        report = await sandbox.report(job.id)
        if job.unreachable_since is not None:
            async with self._database.begin() as connection:
                await store.set_unreachable_since(connection, job.id, since=None)
        await self._settlement.apply_report(job, report)

    async def _sandbox_gone(self, job: Job, error: SandboxGone) -> None:
        """Settle a job whose instance is gone; one that is still being started gets a new instance."""
        if job.spawned_at is not None or age_seconds(job.created_at) > START_TIMEOUT:
            log.warning("job.sandbox_gone", job=job.id, error=str(error))
            await self._settlement.settle(job, failed_end("sandbox_recreated", b""))

    async def _mark_unreachable(self, job: Job, error: SandboxError) -> None:
        since = job.unreachable_since or utc_now()
        log.warning("job.provider_unreachable", job=job.id, since=since.isoformat(), error=str(error))
        if age_seconds(since) > LOST_AFTER:
            await self._settlement.settle(job, JobEnd(state=JobState.LOST, reason="provider_unreachable"))
        elif job.unreachable_since is None:
            async with self._database.begin() as connection:
                await store.set_unreachable_since(connection, job.id, since=since)
