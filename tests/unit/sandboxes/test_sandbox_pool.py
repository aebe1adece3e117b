"""Getting hold of sandboxes: reconnect, wake, create, and one more try when one is gone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from delivery.fair_gate import FairGate
from delivery.fair_scheduler import PoolSize
from memory_reservations import MemoryReservations
from memory_sandboxes import MemoryProvider
from pool_harness import OWNER, REQUEST, SPEC, PoolHarness
from sandbox.errors import (
    CommandInterrupted,
    ProviderRefused,
    ProviderUnreachable,
    SandboxBusy,
    SandboxGone,
)
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import Reservation, ReservationStatus, SandboxRequest, reserve
from sandbox.lifecycle.reserved_sandbox import ReservedSandbox
from sandbox.lifecycle.snapshotter import Snapshotter
from sandbox.lifecycle.teardown import Teardown
from sandbox.model import ExecRequest, SandboxId, SandboxSpec
from sandbox.port import Sandbox
from sandbox.snapshots.local import LocalSnapshotStore


class SlowProvider(MemoryProvider):
    """Creates the sandboxes of the account `busy` once `hold` is set; `started` has the labels in order."""

    def __init__(self, hold: asyncio.Event, started: list[str]) -> None:
        super().__init__()
        self._hold = hold
        self._started = started

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Create a sandbox, late for one account."""
        self._started.append(spec.label)
        if spec.label.startswith("busy"):
            await self._hold.wait()
        return await super().create(spec)


async def test_an_open_sandbox_is_used_again() -> None:
    """The same key twice is one instance; a changed spec reconnects to it."""
    harness = PoolHarness()
    pool = harness.pool()
    first = await pool.acquire(REQUEST)
    assert await pool.acquire(REQUEST) is first
    changed = replace(REQUEST, spec=replace(SPEC, env={"A": "1"}))
    again = await pool.acquire(changed)
    assert again is not first
    assert again.id == first.id
    assert harness.provider.created_count == 1


async def test_another_process_finds_the_sandbox_by_its_row() -> None:
    """What one pool made, another one reconnects to; when it is gone there is a new one."""
    harness = PoolHarness()
    made = await harness.pool().acquire(REQUEST)
    assert (await harness.pool().acquire(REQUEST)).id == made.id
    await harness.provider.destroy(made.id)
    assert (await harness.pool().acquire(REQUEST)).id != made.id
    row = harness.reservations.rows[SPEC.label]
    assert (row.boot, row.status) == (2, ReservationStatus.READY)


async def test_twenty_at_once_make_one_sandbox() -> None:
    """Those who come while one is being made wait for it, in this process and in another."""
    harness = PoolHarness()
    pools = [harness.pool(), harness.pool()]

    async def work(sandbox: Sandbox) -> SandboxId:
        return sandbox.id

    found = await asyncio.gather(*(pools[number % 2].use(REQUEST, work) for number in range(20)))
    assert len(set(found)) == 1
    assert harness.provider.created_count == 1
    assert ("sandbox.remake", "reset") not in harness.reservations.changes


async def test_a_sandbox_starts_while_another_account_starts_more_than_fit() -> None:
    """Of four places for starts, one account holds three; another account's sandbox is created at once."""
    hold, started = asyncio.Event(), list[str]()
    harness = PoolHarness(provider=SlowProvider(hold, started), starts=FairGate(PoolSize(places=4)))
    pool = harness.pool()

    def request(account: str, number: int) -> SandboxRequest:
        spec = replace(SPEC, label=f"{account}-{number}")
        return replace(REQUEST, spec=spec, owner=replace(OWNER, account=account))

    busy = [asyncio.create_task(pool.acquire(request("busy", number))) for number in range(20)]
    async with asyncio.timeout(60):
        while len(started) < 3:  # noqa: ASYNC110 - the provider appends
            await asyncio.sleep(0.01)
        await pool.acquire(request("quiet", 0))
    assert started == ["busy-0", "busy-1", "busy-2", "quiet-0"]
    hold.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*busy)
    assert len(started) == 21


async def test_an_unfinished_creation_is_taken_over() -> None:
    """A row that another process left in `creating` belongs to a dead process, because the lock was free."""
    harness = PoolHarness()
    await harness.reservations.add(reserve(REQUEST, harness.now))
    assert (await harness.pool().acquire(REQUEST)).id == "memory-1"
    assert ("sandbox.remake", "reset") in harness.reservations.changes


async def test_a_provider_that_refuses_leaves_no_row() -> None:
    """No caller waits for what cannot be made."""
    harness = PoolHarness()

    def refuse(name: str) -> None:
        if name == "sandbox.acquire.before_create":
            raise ProviderRefused("no room")

    harness.checkpoint = refuse
    with pytest.raises(ProviderRefused):
        await harness.pool().acquire(REQUEST)
    assert not harness.reservations.rows


async def test_a_creation_that_is_cancelled_delays_no_others() -> None:
    """Who stops a command whose sandbox is being made can send the next one at once."""
    harness = PoolHarness()

    def stop(name: str) -> None:
        if name == "sandbox.acquire.before_create":
            making.cancel()

    harness.checkpoint = stop
    making = asyncio.create_task(harness.pool().acquire(REQUEST))
    await asyncio.wait({making})
    assert making.cancelled()
    assert not harness.reservations.rows
    harness.checkpoint = lambda _name: None
    assert (await Pool(harness.backend(), timeout=0.15).acquire(REQUEST)).id == "memory-1"


@pytest.mark.parametrize("point", ["sandbox.acquire.after_create", "sandbox.acquire.after_restore"])
async def test_a_restore_that_is_cancelled_delays_no_others(tmp_path: Path, point: str) -> None:
    """The snapshot stays for the next one, who comes at once; what was made by then is swept up."""
    harness, stopped = PoolHarness(), ""

    def stop(name: str) -> None:
        if name == stopped:
            making.cancel()

    keeper = Snapshotter(LocalSnapshotStore(tmp_path / "store"), tmp_path / "scratch")
    backend = replace(harness.backend(), snapshotter=keeper, checkpoint=stop)
    pool = Pool(backend, timeout=1.0)
    await (await pool.acquire(REQUEST)).run(ExecRequest(script="keep note kept"))
    await pool.snapshots.save(REQUEST)
    await harness.provider.destroy(SandboxId("memory-1"))
    pool.evict(SPEC.label)
    stopped = point
    making = asyncio.create_task(pool.acquire(REQUEST))
    await asyncio.wait({making})
    stopped = ""
    assert making.cancelled()
    assert harness.reservations.rows[SPEC.label].is_stopped
    assert await Teardown(backend, pool.evict).sweep("dovecote-here-") == 1
    assert not harness.provider.instances
    again = await Pool(backend, timeout=0.15).acquire(REQUEST)
    assert (await again.run(ExecRequest(script="kept note"))).stdout == b"kept"
    assert await Teardown(backend, pool.evict).sweep("dovecote-here-") == 0


async def test_who_is_stopped_while_it_claims_a_row_lets_go_of_it() -> None:
    """A claim that succeeded in the meantime is released; no call waits for it to expire."""
    harness = PoolHarness()

    class Slow(MemoryReservations):
        async def add(self, row: Reservation) -> bool:
            claiming.cancel()
            await asyncio.sleep(0)
            return await super().add(row)

    harness.reservations = Slow()
    claiming = asyncio.create_task(harness.pool().acquire(REQUEST))
    await asyncio.wait({claiming})
    assert claiming.cancelled()
    assert not harness.reservations.rows
    assert not harness.provider.created_count


async def test_gone_is_tried_exactly_once_more() -> None:
    """A function that finds its sandbox gone runs again on a new one, and not a third time."""
    harness = PoolHarness()
    seen: list[SandboxId] = []

    async def fail(sandbox: Sandbox) -> None:
        seen.append(sandbox.id)
        await harness.provider.destroy(sandbox.id)
        raise SandboxGone

    with pytest.raises(SandboxGone):
        await harness.pool().use(REQUEST, fail)
    assert len(seen) == len(set(seen)) == 2


async def test_a_command_that_had_begun_is_not_run_again() -> None:
    """Its effects are unknown; the call after it gets a new sandbox."""
    harness = PoolHarness()
    pool, seen = harness.pool(), list[SandboxId]()

    async def end_with_the_sandbox(sandbox: Sandbox) -> None:
        seen.append(sandbox.id)
        await harness.provider.destroy(sandbox.id)
        raise CommandInterrupted

    async def succeed(sandbox: Sandbox) -> None:
        seen.append(sandbox.id)

    with pytest.raises(CommandInterrupted, match="before you repeat it"):
        await pool.use(REQUEST, end_with_the_sandbox)
    assert len(seen) == 1
    await pool.use(REQUEST, succeed)
    assert len(set(seen)) == 2


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
    harness = PoolHarness()
    pool = harness.pool()
    await pool.acquire(REQUEST)
    harness.now += timedelta(seconds=100)
    row = harness.reservations.rows[SPEC.label]
    assert await Teardown(pool.backend, pool.evict).suspend(row, SPEC, reason="idle")
    asleep = harness.reservations.rows[SPEC.label]
    assert (asleep.paused, asleep.seconds, asleep.active_since) == (True, 100.0, None)
    assert harness.provider.instances[SandboxId("memory-1")].suspended
    harness.now += timedelta(seconds=1000)
    result = await ReservedSandbox(pool, REQUEST).run(ExecRequest(script="echo up"))
    awake = harness.reservations.rows[SPEC.label]
    assert result.stdout == b"up\n"
    assert (awake.paused, awake.seconds_at(harness.now)) == (False, 100.0)


async def test_a_sandbox_in_use_is_not_put_to_sleep() -> None:
    """Neither while a call runs, nor when it was used after the reaper checked."""
    harness = PoolHarness()
    pool = harness.pool()
    endings = Teardown(pool.backend, pool.evict)
    await pool.acquire(REQUEST)
    row = harness.reservations.rows[SPEC.label]

    async def in_between(_sandbox: Sandbox) -> None:
        with pytest.raises(SandboxBusy):
            await endings.suspend(row, SPEC, reason="idle")

    await pool.use(REQUEST, in_between)
    await harness.reservations.touch(SPEC.label, "cnv_2", harness.now + timedelta(seconds=1))
    assert not await endings.suspend(row, SPEC, reason="idle")


async def test_a_long_call_keeps_the_sandbox_awake() -> None:
    """While a call runs, the idle timer is reset and the provider's own is put off."""
    harness = PoolHarness()
    pool = harness.pool()
    short = replace(REQUEST, spec=replace(SPEC, idle_timeout=0.03))
    await pool.acquire(short)
    machine = harness.provider.instances[SandboxId("memory-1")]

    async def thinking(_sandbox: Sandbox) -> None:
        harness.now += timedelta(seconds=1)
        await machine.kept_alive.wait()

    async with asyncio.timeout(5):
        await pool.use(short, thinking)
    assert harness.reservations.rows[SPEC.label].used_at == harness.now


async def test_a_sweep_removes_what_has_no_row() -> None:
    """An object of ours without a row goes; one with a row, and another installation's, stay."""
    harness = PoolHarness()
    pool = harness.pool()
    kept = await pool.acquire(REQUEST)
    orphan = await harness.provider.create(replace(SPEC, label="dovecote-here-two"))
    foreign = await harness.provider.create(replace(SPEC, label="dovecote-there-one"))
    endings = Teardown(pool.backend, pool.evict)
    assert await endings.sweep("dovecote-here-") == 1
    assert set(harness.provider.instances) == {kept.id, foreign.id} - {orphan.id}
    assert await endings.sweep("dovecote-here-") == 0


async def test_a_sweep_removes_the_second_machine_of_a_label() -> None:
    """What a service still made for a process that died goes; the one of the row stays open and unsaved."""
    harness = PoolHarness()
    pool = harness.pool()
    kept = await pool.acquire(REQUEST)
    harness.provider.instances[SandboxId("memory-late")] = replace(harness.provider.instances[kept.id])
    endings = Teardown(pool.backend, pool.evict)
    assert await endings.sweep("dovecote-here-") == 1
    assert set(harness.provider.instances) == {kept.id}
    assert pool.get_open(SPEC.label) is kept


async def test_a_deleted_sandbox_leaves_neither_row_nor_machine() -> None:
    """Deleting drops the row first and then destroys; a second time there is nothing to delete."""
    harness = PoolHarness()
    pool = harness.pool()
    await pool.acquire(REQUEST)
    endings = Teardown(pool.backend, pool.evict)
    assert await endings.delete(SPEC.label, reason="removed")
    assert not await endings.delete(SPEC.label, reason="removed")
    assert (harness.reservations.rows, harness.provider.instances) == ({}, {})


async def test_a_full_disk_keeps_no_sandbox_alive(tmp_path: Path) -> None:
    """The end of a sandbox's time comes although its last snapshot cannot be written."""
    harness = PoolHarness()
    blocked = tmp_path / "scratch"
    blocked.write_text("a file where a directory should be")
    backend = replace(
        harness.backend(), snapshotter=Snapshotter(LocalSnapshotStore(tmp_path / "store"), blocked)
    )
    pool = Pool(backend)
    await pool.acquire(REQUEST)
    row = harness.reservations.rows[SPEC.label]
    assert await Teardown(backend, pool.evict).stop(row, SPEC, reason="expired")
    assert (harness.reservations.rows, harness.provider.instances) == ({}, {})
