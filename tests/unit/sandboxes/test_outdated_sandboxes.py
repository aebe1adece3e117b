"""A sandbox whose record was changed: nothing that runs in it is ended, and what it holds is saved first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

from structlog.testing import capture_logs

from memory_reservations import MemoryReservations
from memory_sandboxes import MemoryProvider
from pool_harness import REQUEST, SPEC, PoolHarness
from sandbox.errors import SandboxOutdated
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import Reservation
from sandbox.lifecycle.snapshotter import Snapshotter
from sandbox.model import ExecRequest, SandboxId, SandboxSpec
from sandbox.port import Sandbox
from sandbox.snapshots.local import LocalSnapshotStore

CHANGED = replace(REQUEST, spec=replace(SPEC, memory_mb=300))


class LimitedProvider(MemoryProvider):
    """Instances with a limit of memory that cannot be changed; `create` replaces one that has another."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: dict[SandboxId, int] = {}

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Create an instance, and delete an outdated one of the label."""
        for sandbox_id, instance in list(self.instances.items()):
            if instance.label == spec.label and self._limits[sandbox_id] != spec.memory_mb:
                await self.destroy(sandbox_id)
        made = await super().create(spec)
        self._limits[made.id] = spec.memory_mb
        return made

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an instance; one with another limit is outdated."""
        found = await super().connect(sandbox_id, spec)
        if not spec.as_created and self._limits[sandbox_id] != spec.memory_mb:
            raise SandboxOutdated
        return found


@dataclass(kw_only=True)
class CountedJobs:
    """So many jobs run in every sandbox."""

    jobs: int = 0

    async def count(self, _row: Reservation) -> int:
        """Return the number."""
        return self.jobs


@dataclass(kw_only=True)
class OutdatedHarness:
    """A pool on the provider with limits, with jobs and perhaps snapshots."""

    running: CountedJobs = field(default_factory=CountedJobs)
    reservations: MemoryReservations = field(default_factory=MemoryReservations)
    snapshots: Path | None = None

    def pool(self) -> Pool:
        """Return the pool."""
        harness = PoolHarness(provider=LimitedProvider(), reservations=self.reservations)
        at = self.snapshots
        snapshotter = Snapshotter(LocalSnapshotStore(at / "store"), at / "scratch") if at else None
        backend = replace(harness.backend(), count_jobs=self.running.count, snapshotter=snapshotter)
        return Pool(backend, timeout=1.0)


async def instance_of(sandbox: Sandbox) -> SandboxId:
    """Return the id of the instance in use."""
    return sandbox.id


async def test_a_change_waits_for_the_jobs_of_a_sandbox() -> None:
    """While a job runs the present instance is used, and checked each time; then there is a new one."""
    harness = OutdatedHarness()
    pool = harness.pool()
    first = await pool.use(REQUEST, instance_of)
    harness.running.jobs = 1
    assert [await pool.use(CHANGED, instance_of) for _ in range(2)] == [first, first]
    harness.running.jobs = 0
    second = await pool.use(CHANGED, instance_of)
    assert second != first
    assert await pool.use(CHANGED, instance_of) == second
    assert harness.reservations.rows[SPEC.label].boot == 2


async def test_a_change_waits_for_the_command_of_another_conversation() -> None:
    """A command that runs in a shared sandbox is not interrupted by the next one with other settings."""
    pool = OutdatedHarness().pool()
    begun, end = asyncio.Event(), asyncio.Event()

    async def work(sandbox: Sandbox) -> bytes:
        begun.set()
        await end.wait()
        return (await sandbox.run(ExecRequest(script="echo done"))).stdout

    async with asyncio.timeout(30):
        command = asyncio.create_task(pool.use(REQUEST, work))
        await begun.wait()
        during = await pool.use(CHANGED, instance_of)
        end.set()
        assert await command == b"done\n"
        assert await pool.use(CHANGED, instance_of) != during


async def test_the_last_snapshot_is_taken_before_a_sandbox_is_replaced(tmp_path: Path) -> None:
    """The next instance has what the replaced one held, not what the last turn saved."""
    pool = OutdatedHarness(snapshots=tmp_path).pool()
    await pool.use(REQUEST, lambda sandbox: sandbox.run(ExecRequest(script="keep note old")))
    await pool.snapshots.save(REQUEST)
    await pool.use(REQUEST, lambda sandbox: sandbox.run(ExecRequest(script="keep note new")))
    found = await pool.use(CHANGED, lambda sandbox: sandbox.run(ExecRequest(script="kept note")))
    assert found.stdout == b"new"


async def test_a_sandbox_that_cannot_be_saved_is_not_replaced(tmp_path: Path) -> None:
    """With a snapshot store that fails, the present instance is used until it can be saved."""
    pool = OutdatedHarness(snapshots=tmp_path).pool()
    first = await pool.use(REQUEST, instance_of)
    (tmp_path / "store").mkdir(exist_ok=True)
    (tmp_path / "scratch").write_text("no directory")
    assert await pool.use(CHANGED, instance_of) == first
    (tmp_path / "scratch").unlink()
    assert await pool.use(CHANGED, instance_of) != first


async def test_services_of_a_replaced_sandbox_are_started_again() -> None:
    """Their definitions are in HOME, which a provider may keep; a first instance can have none."""
    pool = OutdatedHarness().pool()
    with capture_logs() as logs:
        await pool.use(REQUEST, instance_of)
    assert logs == []
    with capture_logs() as logs:
        await pool.use(CHANGED, instance_of)
    # The provider in memory cannot run the program that lists them.
    assert [one["event"] for one in logs] == ["sandbox.services_restart_failed"]
