"""Control of live sandboxes: list, run commands, suspend, delete, and reap on a schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import cycle
from random import sample

import structlog

from delivery.broker.port import Leases
from delivery.database.clock import utc_now
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.errors import DeliveryError
from gateway.environments.backends import Backends
from gateway.environments.environment import Environment
from gateway.environments.resolver import EnvironmentResolver
from gateway.jobs.settlement import JobSettlement
from gateway.maintenance.provider_answers import ProviderAnswers
from gateway.maintenance.sandbox_passes import ReaperPasses
from gateway.store import sandboxes as store
from gateway.store.accounts import records
from gateway.store.job_state import JobReason
from gateway.store.turns import jobs as job_store
from sandbox.errors import ProviderRefused, SandboxError, SandboxGone
from sandbox.labels import KEY_CHARACTERS, installation_prefix
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reaper import Reaper, ReaperHooks, SandboxEnd
from sandbox.lifecycle.reservations import Reservation, ReservationStore
from sandbox.lifecycle.services import SandboxServices, ServiceStatus
from sandbox.lifecycle.teardown import Teardown
from sandbox.model import ExecRequest, ExecResult, SandboxSpec

log = structlog.get_logger(__name__)

INTERVAL = 15.0
SWEEP_INTERVAL = 600.0
PATIENCE = 5.0
"""Seconds to wait for a sandbox in use whose record was deleted."""
SWEEP_PATIENCE = 60.0
"""Seconds that a person who asked for a sweep waits for its two parts each; what has not ended goes on."""
LOCK_RETENTION = timedelta(days=1)
LEASE_NAME = "sandboxes"
_KEY_LENGTH = 26


def _is_older(row: Reservation, changed_at: datetime | None) -> bool:
    """Return whether the instance of a row was made before a change; None: it is unknown when."""
    return row.made_at is not None and (changed_at is None or changed_at > row.made_at)


def sandbox_id(label: str) -> str:
    """Return the public id of a sandbox: the key in its label."""
    return f"box_{label[-_KEY_LENGTH:]}"


class SandboxControl:
    """Operations on sandboxes outside of turns, and the reaper's schedule."""

    def __init__(
        self,
        database: Database,
        reservations: ReservationStore,
        environment_resolver: EnvironmentResolver,
        job_settlement: JobSettlement,
        pools: Mapping[str, Pool],
        *,
        installation: str,
    ) -> None:
        self._database = database
        self._environment_resolver = environment_resolver
        self._job_settlement = job_settlement
        self._pools = pools
        self._prefix = installation_prefix(installation)
        self._teardowns = {name: Teardown(pool.backend, pool.evict) for name, pool in pools.items()}
        hooks = ReaperHooks(get_spec=self._spec_of, list_running_jobs=self._jobs_in, end_jobs=self._fail_jobs)
        self._reaper = Reaper(reservations, self._teardowns, hooks, clock=utc_now)
        self._passes = ReaperPasses(self._reaper)
        self._answers = ProviderAnswers()
        self._endings = cycle(sample(KEY_CHARACTERS, len(KEY_CHARACTERS)))
        """Of the sandboxes without an instance, a pass visits those whose labels end with the next one.

        The order is another one in each process, so that no part waits while processes end early.
        """
        self._started_at = utc_now()
        """Since then the operator's settings are what they are."""

    async def list(self, account: str, *, after: str, limit: int) -> Sequence[Reservation]:
        """Return the account's sandboxes after an id."""
        async with self._database.read() as connection:
            return await store.list_for_account(connection, account, after=self._label(after), limit=limit)

    def _label(self, sandbox: str) -> str:
        return self._prefix + sandbox.removeprefix("box_")

    async def get(self, account: str, sandbox: str) -> Reservation | None:
        """Return a sandbox of the account by its id."""
        async with self._database.read() as connection:
            row = await store.get(connection, self._label(sandbox))
        return row if row is not None and row.owner.account == account else None

    async def count_waiting_jobs(self, account: str, rows: Sequence[Reservation]) -> Mapping[str, int]:
        """Return, by label, how many running jobs a change of the sandbox's record waits for, unless none."""
        async with self._database.read() as connection:
            running = await store.count_running_jobs(connection, account)
            found = await records.list_by_kind(connection, account, "sandbox")
        changed_at = {record.id: record.updated_at for record in found}
        jobs = {row.label: running.get((row.provider, row.sandbox or ""), 0) for row in rows}
        changed = {row.label: _is_older(row, changed_at.get(row.owner.record or "")) for row in rows}
        candidates = [
            row
            for row in rows
            if jobs[row.label] and (changed[row.label] or _is_older(row, self._started_at))
        ]
        outdated = await asyncio.gather(
            *(self._is_outdated(row, if_unknown=changed[row.label]) for row in candidates)
        )
        return {row.label: jobs[row.label] for row, yes in zip(candidates, outdated, strict=True) if yes}

    async def _is_outdated(self, row: Reservation, *, if_unknown: bool) -> bool:
        """Return whether a sandbox has other settings than its record, or the operator's, ask for now.

        A record that now describes another sandbox, which the next command gets, waits for nothing.
        """
        try:
            environment = await self._environment_of(row)
            spec = environment.spec
            is_same = (environment.provider, spec.persistent) == (row.provider, row.persistent)
            if row.sandbox is None or not is_same:
                return False
            if self._answers.is_paused(row.provider):
                return if_unknown
            backend = self._pool(row.provider).backend
            return await self._answers.get(row.provider, backend.is_outdated(row.sandbox, spec))
        except SandboxGone:
            return False
        except (SandboxError, TimeoutError):
            return if_unknown

    async def run_command(self, row: Reservation, command: ExecRequest) -> ExecResult:
        """Run a command in a sandbox, waking it; raises SandboxError."""
        environment = await self._environment_of(row)
        pool = self._pool(environment.provider)
        return await pool.use(environment.request, lambda sandbox: sandbox.run(command))

    async def list_services(self, row: Reservation) -> Sequence[ServiceStatus]:
        """Return the services of a sandbox, waking it; raises SandboxError."""
        environment = await self._environment_of(row)
        return await self._pool(environment.provider).use(
            environment.request, lambda sandbox: SandboxServices(sandbox=sandbox).list_all()
        )

    async def expose(self, row: Reservation, port: int) -> str:
        """Return the URL of a port of a sandbox that is awake; raises SandboxError."""
        if row.paused or row.is_stopped:
            raise ProviderRefused("it is suspended: send its agent a message, which resumes it")
        environment = await self._environment_of(row)
        return await self._pool(environment.provider).use(
            environment.request, lambda sandbox: sandbox.expose(port), read_only=True
        )

    async def _environment_of(self, row: Reservation) -> Environment:
        environment = await self._environment_resolver.for_reservation(row)
        if environment is None:
            raise SandboxGone("the sandbox's record or workspace was deleted")
        return environment

    def _pool(self, provider: str) -> Pool:
        if provider not in self._pools:
            raise ProviderRefused(f"sandbox provider {provider!r} is not open here")
        return self._pools[provider]

    async def suspend(self, row: Reservation) -> bool:
        """Suspend a sandbox; returns False if it was suspended. Raises SandboxBusy, ProviderRefused."""
        if await self._jobs_in(row):
            raise ProviderRefused("a sandbox with a running job cannot be suspended: stop the job first")
        environment = await self._environment_of(row)
        return await self._teardown(row).suspend(row, environment.spec, reason="asked")

    def _teardown(self, row: Reservation) -> Teardown:
        self._pool(row.provider)
        return self._teardowns[row.provider]

    async def delete(self, row: Reservation) -> None:
        """Delete a sandbox, its jobs and its snapshots; raises SandboxBusy."""
        self._teardown(row)
        await self._reaper.delete(row)

    async def delete_all(self, rows: Sequence[Reservation]) -> None:
        """Delete the sandboxes of a deleted record or workspace; the reaper deletes those that stay in use.

        `rows` are read in the transaction that deletes the record: the reaper may delete them after it.
        """
        for row in rows:
            with suppress(SandboxError):
                self._teardown(row)
                await self._reaper.delete(row, patience=PATIENCE)

    async def release(self, rows: Sequence[Reservation]) -> None:
        """Destroy the sandboxes of a deleted account; a sweep deletes those that fail."""
        for row in rows:
            try:
                await self._teardown(row).cleanup(row)
            except SandboxError as error:
                log.warning("sandbox.release_failed", label=row.label, error=str(error))

    async def list_all(self, account: str) -> Sequence[Reservation]:
        """Return all sandboxes of an account."""
        async with self._database.read() as connection:
            return await store.list_for_account(connection, account, limit=100_000)

    async def sweep(self) -> int:
        """Run the reaper once, and delete sandboxes without a row; returns how many orphans there were."""
        await self._passes.visit_all(patience=SWEEP_PATIENCE)
        return await self._passes.sweep(self._prefix, patience=SWEEP_PATIENCE)

    async def run_reaper(self, stop: asyncio.Event, leases: Leases, *, interval: float = INTERVAL) -> None:
        """Run the reaper until stopped, in one process at a time; sweeps every SWEEP_INTERVAL seconds."""
        sweep_at = 0.0
        try:
            while not stop.is_set():
                now = asyncio.get_running_loop().time()
                is_due = now >= sweep_at
                if await self._run_pass(leases, interval, sweep=is_due) and is_due:
                    sweep_at = now + SWEEP_INTERVAL
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval):
                        await stop.wait()
        finally:
            await self._passes.aclose()

    async def _run_pass(self, leases: Leases, patience: float, *, sweep: bool) -> bool:
        """Run the reaper once; return whether this process did."""
        try:
            async with leases.acquire(LEASE_NAME):
                await self._passes.visit_all(patience=patience, ending=next(self._endings))
                if sweep:
                    await self._passes.sweep(self._prefix, patience=patience)
                    await self._delete_old_locks()
                return True
        except (DeliveryError, DatabaseUnavailable) as error:
            log.debug("reaper.database_unavailable", error=str(error))
        except Exception:  # the outermost loop of the reaper: the next pass must run
            log.exception("reaper.failed")
        return False

    async def _delete_old_locks(self) -> None:
        async with self._database.begin() as connection:
            await store.delete_locks_before(connection, before=utc_now() - LOCK_RETENTION)

    async def _spec_of(self, row: Reservation) -> SandboxSpec | None:
        environment = await self._environment_resolver.for_reservation(row)
        return environment.spec if environment else None

    async def _jobs_in(self, row: Reservation) -> Sequence[str]:
        async with self._database.read() as connection:
            return await store.list_running_jobs(connection, row)

    async def _fail_jobs(self, row: Reservation, reason: SandboxEnd) -> None:
        """Settle the running jobs of a sandbox that ends as failed for `reason`."""
        for job_id in await self._jobs_in(row):
            async with self._database.read() as connection:
                job = await job_store.get_by_id(connection, job_id)
            if job is not None:
                await self._job_settlement.fail(job, JobReason(reason))


def open_sandbox_control(
    database: Database, backends: Backends, resolver: EnvironmentResolver, settlement: JobSettlement
) -> SandboxControl:
    """Return the control of the sandboxes of all providers that are configured."""
    return SandboxControl(
        database,
        backends.reservations,
        resolver,
        settlement,
        backends.pools,
        installation=backends.installation,
    )
