"""Getting hold of sandboxes: reconnect, wake, create, and one more try when one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memory_reservations import MemoryReservations, MemorySandboxLocks
from memory_sandboxes import MemoryProvider
from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxBusy, SandboxGone
from sandbox.labels import Owner, Scope
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.locks import SandboxLocks
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import Reservation, ReservationStatus, SandboxRequest, reserve
from sandbox.lifecycle.reserved_sandbox import ReservedSandbox
from sandbox.lifecycle.snapshotter import Snapshotter
from sandbox.lifecycle.teardown import Teardown
from sandbox.model import ExecRequest, SandboxId, SandboxSpec
from sandbox.port import Sandbox
from sandbox.snapshots.local import LocalSnapshotStore

SPEC = SandboxSpec(label="dovecote-here-one", namespace="space", persistent=True)
OWNER = Owner(account="acc_1", scope=Scope.SESSION, conversation="cnv_1")
REQUEST = SandboxRequest(spec=SPEC, owner=OWNER, provider="memory")


@dataclass(kw_only=True)
class PoolHarness:
    """A pool on a register and a provider in memory, with a clock of its own."""

    provider: MemoryProvider = field(default_factory=MemoryProvider)
    reservations: MemoryReservations = field(default_factory=MemoryReservations)
    lock_store: MemorySandboxLocks = field(default_factory=MemorySandboxLocks)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    checkpoint: Callable[[str], None] = field(default=lambda _name: None)

    def backend(self) -> Backend:
        """Return the backend of a pool."""
        return Backend(
            provider=self.provider,
            reservations=self.reservations,
            locks=SandboxLocks(self.lock_store, timeout=1.0),
            checkpoint=self.checkpoint,
            clock=lambda: self.now,
        )

    def pool(self) -> Pool:
        """Return a pool as another process would have one."""
        return Pool(self.backend(), timeout=1.0)


async def test_an_open_sandbox_is_used_again() -> None:
    """The same key twice is one instance; a changed spec reconnects to it."""
    stage = PoolHarness()
    pool = stage.pool()
    first = await pool.acquire(REQUEST)
    assert await pool.acquire(REQUEST) is first
    changed = replace(REQUEST, spec=replace(SPEC, env={"A": "1"}))
    again = await pool.acquire(changed)
    assert again is not first
    assert again.id == first.id
    assert stage.provider.created_count == 1


async def test_another_process_finds_the_sandbox_by_its_row() -> None:
    """What one pool made, another one reconnects to; when it is gone there is a new one."""
    stage = PoolHarness()
    made = await stage.pool().acquire(REQUEST)
    assert (await stage.pool().acquire(REQUEST)).id == made.id
    await stage.provider.destroy(made.id)
    assert (await stage.pool().acquire(REQUEST)).id != made.id
    row = stage.reservations.rows[SPEC.label]
    assert (row.boot, row.status) == (2, ReservationStatus.READY)


async def test_twenty_at_once_make_one_sandbox() -> None:
    """Those who come while one is being made wait for it, in this process and in another."""
    stage = PoolHarness()
    pools = [stage.pool(), stage.pool()]

    async def work(sandbox: Sandbox) -> SandboxId:
        return sandbox.id

    found = await asyncio.gather(*(pools[number % 2].use(REQUEST, work) for number in range(20)))
    assert len(set(found)) == 1
    assert stage.provider.created_count == 1
    assert ("sandbox.remake", "reset") not in stage.reservations.changes


async def test_a_creation_nobody_finishes_is_taken_over() -> None:
    """A row that another process left in `creating` belongs to a dead process, because the lock was free."""
    stage = PoolHarness()
    await stage.reservations.add(reserve(REQUEST, stage.now))
    assert (await stage.pool().acquire(REQUEST)).id == "memory-1"
    assert ("sandbox.remake", "reset") in stage.reservations.changes


async def test_a_provider_that_refuses_leaves_no_row() -> None:
    """Nobody waits for what cannot be made."""
    stage = PoolHarness()

    def refuse(name: str) -> None:
        if name == "sandbox.acquire.before_create":
            raise ProviderRefused("no room")

    stage.checkpoint = refuse
    with pytest.raises(ProviderRefused):
        await stage.pool().acquire(REQUEST)
    assert not stage.reservations.rows


async def test_a_creation_that_is_cancelled_keeps_nobody_waiting() -> None:
    """Who stops a command whose sandbox is being made can send the next one at once."""
    stage = PoolHarness()

    def stop(name: str) -> None:
        if name == "sandbox.acquire.before_create":
            making.cancel()

    stage.checkpoint = stop
    making = asyncio.create_task(stage.pool().acquire(REQUEST))
    await asyncio.wait({making})
    assert making.cancelled()
    assert not stage.reservations.rows
    stage.checkpoint = lambda _name: None
    assert (await Pool(stage.backend(), timeout=0.15).acquire(REQUEST)).id == "memory-1"


@pytest.mark.parametrize("point", ["sandbox.acquire.after_create", "sandbox.acquire.after_restore"])
async def test_a_restore_that_is_cancelled_keeps_nobody_waiting(tmp_path: Path, point: str) -> None:
    """The snapshot stays for the next one, who comes at once; what was made by then is swept up."""
    stage, stopped = PoolHarness(), ""

    def stop(name: str) -> None:
        if name == stopped:
            making.cancel()

    keeper = Snapshotter(LocalSnapshotStore(tmp_path / "store"), tmp_path / "scratch")
    stand = replace(stage.backend(), snapshotter=keeper, checkpoint=stop)
    pool = Pool(stand, timeout=1.0)
    await (await pool.acquire(REQUEST)).run(ExecRequest(script="keep note kept"))
    await pool.save(REQUEST, changed=True)
    await stage.provider.destroy(SandboxId("memory-1"))
    pool.evict(SPEC.label)
    stopped = point
    making = asyncio.create_task(pool.acquire(REQUEST))
    await asyncio.wait({making})
    stopped = ""
    assert making.cancelled()
    assert stage.reservations.rows[SPEC.label].is_stopped
    assert await Teardown(stand, pool.evict).sweep("dovecote-here-") == 1
    assert not stage.provider.instances
    again = await Pool(stand, timeout=0.15).acquire(REQUEST)
    assert (await again.run(ExecRequest(script="kept note"))).stdout == b"kept"
    assert await Teardown(stand, pool.evict).sweep("dovecote-here-") == 0


async def test_who_is_stopped_while_it_claims_a_row_lets_go_of_it() -> None:
    """A claim that succeeded in the meantime is released; no call waits for it to expire."""
    stage = PoolHarness()

    class Slow(MemoryReservations):
        async def add(self, row: Reservation) -> bool:
            claiming.cancel()
            await asyncio.sleep(0)
            return await super().add(row)

    stage.reservations = Slow()
    claiming = asyncio.create_task(stage.pool().acquire(REQUEST))
    await asyncio.wait({claiming})
    assert claiming.cancelled()
    assert not stage.reservations.rows
    assert not stage.provider.created_count


async def test_gone_is_tried_exactly_once_more() -> None:
    """A function that finds its sandbox gone runs again on a new one, and not a third time."""
    stage = PoolHarness()
    seen: list[SandboxId] = []

    async def fail(sandbox: Sandbox) -> None:
        seen.append(sandbox.id)
        await stage.provider.destroy(sandbox.id)
        raise SandboxGone

    with pytest.raises(SandboxGone):
        await stage.pool().use(REQUEST, fail)
    assert len(seen) == len(set(seen)) == 2


async def test_other_errors_pass_at_once() -> None:
    """Anything but Gone propagates from the first call."""
    calls = 0

    async def fail(_sandbox: Sandbox) -> None:
        nonlocal calls
        calls += 1
        raise ProviderUnreachable

    with pytest.raises(ProviderUnreachable):
        await PoolHarness().pool().use(REQUEST, fail)
    assert calls == 1


async def test_a_suspended_sandbox_is_woken_by_its_next_use() -> None:
    """Seconds are counted while it is awake and not while it sleeps."""
    stage = PoolHarness()
    pool = stage.pool()
    await pool.acquire(REQUEST)
    stage.now += timedelta(seconds=100)
    row = stage.reservations.rows[SPEC.label]
    assert await Teardown(pool.backend, pool.evict).suspend(row, SPEC, reason="idle")
    asleep = stage.reservations.rows[SPEC.label]
    assert (asleep.paused, asleep.seconds, asleep.active_since) == (True, 100.0, None)
    assert stage.provider.instances[SandboxId("memory-1")].suspended
    stage.now += timedelta(seconds=1000)
    result = await ReservedSandbox(pool, REQUEST).run(ExecRequest(script="echo up"))
    awake = stage.reservations.rows[SPEC.label]
    assert result.stdout == b"up\n"
    assert (awake.paused, awake.seconds_at(stage.now)) == (False, 100.0)


async def test_a_sandbox_in_use_is_not_put_to_sleep() -> None:
    """Neither while a call runs, nor when it was used after the reaper checked."""
    stage = PoolHarness()
    pool = stage.pool()
    endings = Teardown(pool.backend, pool.evict)
    await pool.acquire(REQUEST)
    row = stage.reservations.rows[SPEC.label]

    async def meanwhile(_sandbox: Sandbox) -> None:
        with pytest.raises(SandboxBusy):
            await endings.suspend(row, SPEC, reason="idle")

    await pool.use(REQUEST, meanwhile)
    await stage.reservations.touch(SPEC.label, "cnv_2", stage.now + timedelta(seconds=1))
    assert not await endings.suspend(row, SPEC, reason="idle")


async def test_a_long_call_keeps_the_sandbox_awake() -> None:
    """While a call runs, the idle timer is reset and the provider's own is put off."""
    stage = PoolHarness()
    pool = stage.pool()
    short = replace(REQUEST, spec=replace(SPEC, idle_timeout=0.03))
    await pool.acquire(short)
    machine = stage.provider.instances[SandboxId("memory-1")]

    async def thinking(_sandbox: Sandbox) -> None:
        stage.now += timedelta(seconds=1)
        await machine.kept_alive.wait()

    async with asyncio.timeout(5):
        await pool.use(short, thinking)
    assert stage.reservations.rows[SPEC.label].used_at == stage.now


async def test_a_sweep_removes_what_no_row_knows_of() -> None:
    """An object of ours without a row goes; one with a row, and another installation's, stay."""
    stage = PoolHarness()
    pool = stage.pool()
    kept = await pool.acquire(REQUEST)
    orphan = await stage.provider.create(replace(SPEC, label="dovecote-here-two"))
    foreign = await stage.provider.create(replace(SPEC, label="dovecote-there-one"))
    endings = Teardown(pool.backend, pool.evict)
    assert await endings.sweep("dovecote-here-") == 1
    assert set(stage.provider.instances) == {kept.id, foreign.id} - {orphan.id}
    assert await endings.sweep("dovecote-here-") == 0


async def test_a_sweep_removes_the_second_machine_of_a_label() -> None:
    """What a service still made for a process that died goes; the one of the row stays open and unsaved."""
    stage = PoolHarness()
    pool = stage.pool()
    kept = await pool.acquire(REQUEST)
    stage.provider.instances[SandboxId("memory-late")] = replace(stage.provider.instances[kept.id])
    endings = Teardown(pool.backend, pool.evict)
    assert await endings.sweep("dovecote-here-") == 1
    assert set(stage.provider.instances) == {kept.id}
    assert pool.get_open(SPEC.label) is kept


async def test_a_deleted_sandbox_leaves_neither_row_nor_machine() -> None:
    """Deleting drops the row first and then destroys; a second time there is nothing to delete."""
    stage = PoolHarness()
    pool = stage.pool()
    await pool.acquire(REQUEST)
    endings = Teardown(pool.backend, pool.evict)
    assert await endings.delete(SPEC.label, reason="removed")
    assert not await endings.delete(SPEC.label, reason="removed")
    assert (stage.reservations.rows, stage.provider.instances) == ({}, {})


async def test_a_full_disk_keeps_no_sandbox_alive(tmp_path: Path) -> None:
    """The end of a sandbox's time comes although its last snapshot cannot be written."""
    stage = PoolHarness()
    blocked = tmp_path / "scratch"
    blocked.write_text("a file where a directory should be")
    stand = replace(stage.backend(), snapshotter=Snapshotter(LocalSnapshotStore(tmp_path / "store"), blocked))
    pool = Pool(stand)
    await pool.acquire(REQUEST)
    row = stage.reservations.rows[SPEC.label]
    assert await Teardown(stand, pool.evict).stop(row, SPEC, reason="expired")
    assert (stage.reservations.rows, stage.provider.instances) == ({}, {})
