"""The door to live sandboxes: shown, used by hand, put to sleep, removed, looked after and swept up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import structlog

from delivery.broker.port import Leases
from delivery.database.clock import utc_now
from delivery.database.engine import Database, Unavailable
from delivery.errors import DeliveryError
from gateway.environments.resolver import Bench, Workbench
from gateway.jobs.jobs import Jobs
from gateway.store import sandboxes as store
from gateway.store.turns import jobs as job_store
from sandbox.errors import Gone, Refused, SandboxError
from sandbox.labels import prefix_of
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reaper import Reaper, Surroundings
from sandbox.lifecycle.reservations import Register, Reservation
from sandbox.lifecycle.services import Services, Standing
from sandbox.lifecycle.teardown import Endings
from sandbox.model import Command, Result, Spec

log = structlog.get_logger(__name__)

LOOK_EVERY = 15.0
SWEEP_EVERY = 600.0
LEASES_KEPT = timedelta(days=1)
LEASE = "sandboxes"
_KEY = 26


def id_of(label: str) -> str:
    """Return what people call a sandbox: the key in its label."""
    return f"box_{label[-_KEY:]}"


class Sandboxes:
    """What is done to sandboxes from outside of turns, and by time."""

    def __init__(
        self,
        database: Database,
        register: Register,
        workbench: Workbench,
        jobs: Jobs,
        pools: Mapping[str, Pool],
        *,
        installation: str,
    ) -> None:
        self._database = database
        self._workbench = workbench
        self._jobs = jobs
        self._pools = pools
        self._prefix = prefix_of(installation)
        self._endings = {name: Endings(pool.stand, pool.evict) for name, pool in pools.items()}
        around = Surroundings(spec_of=self._spec_of, jobs_in=self._jobs_in, end_jobs=self._end_jobs)
        self._reaper = Reaper(register, self._endings, around, clock=utc_now)

    async def listed(self, account: str, *, after: str, limit: int) -> Sequence[Reservation]:
        """Return the account's sandboxes after an id."""
        async with self._database.read() as connection:
            return await store.listed(connection, account, after=self._label(after), limit=limit)

    def _label(self, sandbox: str) -> str:
        return self._prefix + sandbox.removeprefix("box_")

    async def find(self, account: str, sandbox: str) -> Reservation | None:
        """Return a sandbox of the account by its id."""
        async with self._database.read() as connection:
            row = await store.find(connection, self._label(sandbox))
        return row if row is not None and row.owner.account == account else None

    async def run_in(self, row: Reservation, command: Command) -> Result:
        """Run a command in a sandbox, waking it; raises SandboxError."""
        bench = await self._bench_of(row)
        return await self._pool(bench.provider).use(bench.wanted, lambda sandbox: sandbox.run(command))

    async def services_in(self, row: Reservation) -> Sequence[Standing]:
        """Return the services of a sandbox, waking it; raises SandboxError."""
        bench = await self._bench_of(row)
        return await self._pool(bench.provider).use(
            bench.wanted, lambda sandbox: Services(sandbox=sandbox).every()
        )

    async def _bench_of(self, row: Reservation) -> Bench:
        bench = await self._workbench.bench_of(row)
        if bench is None:
            raise Gone("the sandbox's record or workspace has been removed")
        return bench

    def _pool(self, provider: str) -> Pool:
        if provider not in self._pools:
            raise Refused(f"sandbox provider {provider!r} is not open here")
        return self._pools[provider]

    async def suspend(self, row: Reservation) -> bool:
        """Put a sandbox to sleep now; False when it slept already. Raises Busy, Refused when a job runs."""
        if await self._jobs_in(row):
            raise Refused("a sandbox with a running job is not put to sleep: stop the job first")
        bench = await self._bench_of(row)
        return await self._ending(row).suspend(row, bench.spec, why="asked")

    def _ending(self, row: Reservation) -> Endings:
        self._pool(row.provider)
        return self._endings[row.provider]

    async def remove(self, row: Reservation) -> None:
        """Delete a sandbox, its jobs and its snapshots; raises Busy."""
        self._ending(row)
        await self._reaper.remove(row, "removed")

    async def forget(self, account: str, record: str) -> None:
        """Delete the sandboxes of a record or workspace that is gone; what is in use, the reaper deletes."""
        async with self._database.read() as connection:
            rows = await store.of_record(connection, account, record)
        for row in rows:
            with suppress(SandboxError):
                await self.remove(row)

    async def release(self, rows: Sequence[Reservation]) -> None:
        """Destroy the sandboxes of an account that is gone with its rows; a sweep finds the rest."""
        for row in rows:
            try:
                await self._ending(row).release(row)
            except SandboxError as error:
                log.warning("sandbox.not_released", label=row.label, error=str(error))

    async def rows_of(self, account: str) -> Sequence[Reservation]:
        """Return all sandboxes of an account."""
        async with self._database.read() as connection:
            return await store.listed(connection, account, limit=100_000)

    async def sweep(self) -> int:
        """Look at every row, and remove what no row knows of; returns how many orphans there were."""
        await self._reaper.round()
        return await self._reaper.sweep(self._prefix)

    async def look_after(self, stop: asyncio.Event, leases: Leases, *, every: float = LOOK_EVERY) -> None:
        """Do the rounds until stopped, one process at a time; a sweep at the start and now and then."""
        sweep_at = 0.0
        while not stop.is_set():
            now = asyncio.get_running_loop().time()
            try:
                async with leases.hold(LEASE):
                    await self._reaper.round()
                    if now >= sweep_at:
                        await self._reaper.sweep(self._prefix)
                        await self._forget_leases()
                        sweep_at = now + SWEEP_EVERY
            except (DeliveryError, Unavailable) as error:
                log.debug("sandboxes.waits", error=str(error))
            except Exception:  # the outermost loop of the reaper: it must look again
                log.exception("sandboxes.round_failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await stop.wait()

    async def _forget_leases(self) -> None:
        async with self._database.begin() as connection:
            await store.forget_leases(connection, before=utc_now() - LEASES_KEPT)

    async def _spec_of(self, row: Reservation) -> Spec | None:
        bench = await self._workbench.bench_of(row)
        return bench.spec if bench else None

    async def _jobs_in(self, row: Reservation) -> Sequence[str]:
        async with self._database.read() as connection:
            return await store.jobs_running_in(connection, row)

    async def _end_jobs(self, row: Reservation, why: str) -> None:
        """Stop the jobs of a sandbox that ends, and tell their conversations why."""
        for job_id in await self._jobs_in(row):
            async with self._database.read() as connection:
                job = await job_store.by_id(connection, job_id)
            if job is not None:
                await self._jobs.end(job, why)
