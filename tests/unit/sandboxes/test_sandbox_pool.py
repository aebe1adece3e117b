"""Getting hold of sandboxes: reconnect, wake, create, and one more try when one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memory_reservations import MemoryLeases, MemoryRegister
from memory_sandboxes import MemoryProvider
from sandbox.errors import Busy, Gone, Refused, Unreachable
from sandbox.labels import Owner, Scope
from sandbox.lifecycle.backend import Stand
from sandbox.lifecycle.locks import Guard
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import Reservation, Status, Wanted, reserved
from sandbox.lifecycle.reserved_sandbox import ReservedSandbox
from sandbox.lifecycle.snapshotter import Keeper
from sandbox.lifecycle.teardown import Endings
from sandbox.model import Command, SandboxId, Spec
from sandbox.port import Sandbox
from sandbox.snapshots.local import LocalStore

SPEC = Spec(label="dovecote-here-one", namespace="space", persistent=True)
OWNER = Owner(account="acc_1", scope=Scope.SESSION, conversation="cnv_1")
WANTED = Wanted(spec=SPEC, owner=OWNER, provider="memory")


@dataclass(kw_only=True)
class Stage:
    """A pool on a register and a provider in memory, with a clock of its own."""

    provider: MemoryProvider = field(default_factory=MemoryProvider)
    register: MemoryRegister = field(default_factory=MemoryRegister)
    leases: MemoryLeases = field(default_factory=MemoryLeases)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    checkpoint: Callable[[str], None] = field(default=lambda _name: None)

    def stand(self) -> Stand:
        """Return what a pool stands on."""
        return Stand(
            provider=self.provider,
            register=self.register,
            guard=Guard(self.leases, patience=1.0),
            checkpoint=self.checkpoint,
            clock=lambda: self.now,
        )

    def pool(self) -> Pool:
        """Return a pool as another process would have one."""
        return Pool(self.stand(), patience=1.0)


async def test_an_open_sandbox_is_used_again() -> None:
    """The same key twice is one machine; a changed spec reconnects to it."""
    stage = Stage()
    pool = stage.pool()
    first = await pool.acquire(WANTED)
    assert await pool.acquire(WANTED) is first
    changed = replace(WANTED, spec=replace(SPEC, env={"A": "1"}))
    again = await pool.acquire(changed)
    assert again is not first
    assert again.id == first.id
    assert stage.provider.made == 1


async def test_another_process_finds_the_sandbox_by_its_row() -> None:
    """What one pool made, another one reconnects to; when it is gone there is a new one."""
    stage = Stage()
    made = await stage.pool().acquire(WANTED)
    assert (await stage.pool().acquire(WANTED)).id == made.id
    await stage.provider.destroy(made.id)
    assert (await stage.pool().acquire(WANTED)).id != made.id
    row = stage.register.rows[SPEC.label]
    assert (row.boot, row.status) == (2, Status.READY)


async def test_twenty_at_once_make_one_sandbox() -> None:
    """Those who come while one is being made wait for it, in this process and in another."""
    stage = Stage()
    pools = [stage.pool(), stage.pool()]

    async def work(sandbox: Sandbox) -> SandboxId:
        return sandbox.id

    found = await asyncio.gather(*(pools[number % 2].use(WANTED, work) for number in range(20)))
    assert len(set(found)) == 1
    assert stage.provider.made == 1
    assert ("sandbox.remake", "reset") not in stage.register.told


async def test_a_creation_nobody_finishes_is_taken_over() -> None:
    """A row that is `creating`, and not by us, is that of somebody who died: the guard let us through."""
    stage = Stage()
    await stage.register.add(reserved(WANTED, stage.now))
    assert (await stage.pool().acquire(WANTED)).id == "memory-1"
    assert ("sandbox.remake", "reset") in stage.register.told


async def test_a_provider_that_refuses_leaves_no_row() -> None:
    """Nobody waits for what cannot be made."""
    stage = Stage()

    def refuse(name: str) -> None:
        if name == "sandbox.acquire.before_create":
            raise Refused("no room")

    stage.checkpoint = refuse
    with pytest.raises(Refused):
        await stage.pool().acquire(WANTED)
    assert not stage.register.rows


async def test_a_creation_that_is_cancelled_keeps_nobody_waiting() -> None:
    """Who stops a command whose sandbox is being made can send the next one at once."""
    stage = Stage()

    def stop(name: str) -> None:
        if name == "sandbox.acquire.before_create":
            making.cancel()

    stage.checkpoint = stop
    making = asyncio.create_task(stage.pool().acquire(WANTED))
    await asyncio.wait({making})
    assert making.cancelled()
    assert not stage.register.rows
    stage.checkpoint = lambda _name: None
    assert (await Pool(stage.stand(), patience=0.15).acquire(WANTED)).id == "memory-1"


@pytest.mark.parametrize("point", ["sandbox.acquire.after_create", "sandbox.acquire.after_restore"])
async def test_a_restore_that_is_cancelled_keeps_nobody_waiting(tmp_path: Path, point: str) -> None:
    """The snapshot stays for the next one, who comes at once; what was made by then is swept up."""
    stage, stopped = Stage(), ""

    def stop(name: str) -> None:
        if name == stopped:
            making.cancel()

    keeper = Keeper(LocalStore(tmp_path / "store"), tmp_path / "scratch")
    stand = replace(stage.stand(), keeper=keeper, checkpoint=stop)
    pool = Pool(stand, patience=1.0)
    await (await pool.acquire(WANTED)).run(Command(script="keep note kept"))
    await pool.save(WANTED, changed=True)
    await stage.provider.destroy(SandboxId("memory-1"))
    pool.evict(SPEC.label)
    stopped = point
    making = asyncio.create_task(pool.acquire(WANTED))
    await asyncio.wait({making})
    stopped = ""
    assert making.cancelled()
    assert stage.register.rows[SPEC.label].is_cold
    assert await Endings(stand, pool.evict).sweep("dovecote-here-") == 1
    assert not stage.provider.machines
    again = await Pool(stand, patience=0.15).acquire(WANTED)
    assert (await again.run(Command(script="kept note"))).stdout == b"kept"
    assert await Endings(stand, pool.evict).sweep("dovecote-here-") == 0


async def test_who_is_stopped_while_it_claims_a_row_lets_go_of_it() -> None:
    """A claim that went through meanwhile is given up; nobody waits for it to grow old."""
    stage = Stage()

    class Slow(MemoryRegister):
        async def add(self, row: Reservation) -> bool:
            claiming.cancel()
            await asyncio.sleep(0)
            return await super().add(row)

    stage.register = Slow()
    claiming = asyncio.create_task(stage.pool().acquire(WANTED))
    await asyncio.wait({claiming})
    assert claiming.cancelled()
    assert not stage.register.rows
    assert not stage.provider.made


async def test_gone_is_tried_exactly_once_more() -> None:
    """A function that finds its sandbox gone runs again on a new one, and not a third time."""
    stage = Stage()
    seen: list[SandboxId] = []

    async def fail(sandbox: Sandbox) -> None:
        seen.append(sandbox.id)
        await stage.provider.destroy(sandbox.id)
        raise Gone

    with pytest.raises(Gone):
        await stage.pool().use(WANTED, fail)
    assert len(seen) == len(set(seen)) == 2


async def test_other_errors_pass_at_once() -> None:
    """Anything but Gone propagates from the first call."""
    calls = 0

    async def fail(_sandbox: Sandbox) -> None:
        nonlocal calls
        calls += 1
        raise Unreachable

    with pytest.raises(Unreachable):
        await Stage().pool().use(WANTED, fail)
    assert calls == 1


async def test_a_suspended_sandbox_is_woken_by_its_next_use() -> None:
    """Seconds are counted while it is awake and not while it sleeps."""
    stage = Stage()
    pool = stage.pool()
    await pool.acquire(WANTED)
    stage.now += timedelta(seconds=100)
    row = stage.register.rows[SPEC.label]
    assert await Endings(pool.stand, pool.evict).suspend(row, SPEC, why="idle")
    asleep = stage.register.rows[SPEC.label]
    assert (asleep.paused, asleep.seconds, asleep.active_since) == (True, 100.0, None)
    assert stage.provider.machines[SandboxId("memory-1")].asleep
    stage.now += timedelta(seconds=1000)
    result = await ReservedSandbox(pool, WANTED).run(Command(script="echo up"))
    awake = stage.register.rows[SPEC.label]
    assert result.stdout == b"up\n"
    assert (awake.paused, awake.seconds_at(stage.now)) == (False, 100.0)


async def test_a_sandbox_in_use_is_not_put_to_sleep() -> None:
    """Neither while a call runs, nor when it was used after the reaper looked."""
    stage = Stage()
    pool = stage.pool()
    endings = Endings(pool.stand, pool.evict)
    await pool.acquire(WANTED)
    row = stage.register.rows[SPEC.label]

    async def meanwhile(_sandbox: Sandbox) -> None:
        with pytest.raises(Busy):
            await endings.suspend(row, SPEC, why="idle")

    await pool.use(WANTED, meanwhile)
    await stage.register.touch(SPEC.label, "cnv_2", stage.now + timedelta(seconds=1))
    assert not await endings.suspend(row, SPEC, why="idle")


async def test_a_long_call_keeps_the_sandbox_awake() -> None:
    """While a call runs, the idle timer is reset and the provider's own is put off."""
    stage = Stage()
    pool = stage.pool()
    short = replace(WANTED, spec=replace(SPEC, idle_timeout=0.03))
    await pool.acquire(short)
    machine = stage.provider.machines[SandboxId("memory-1")]

    async def thinking(_sandbox: Sandbox) -> None:
        stage.now += timedelta(seconds=1)
        await machine.kept_alive.wait()

    async with asyncio.timeout(5):
        await pool.use(short, thinking)
    assert stage.register.rows[SPEC.label].used_at == stage.now


async def test_a_sweep_removes_what_no_row_knows_of() -> None:
    """An object of ours without a row goes; one with a row, and another installation's, stay."""
    stage = Stage()
    pool = stage.pool()
    kept = await pool.acquire(WANTED)
    orphan = await stage.provider.create(replace(SPEC, label="dovecote-here-two"))
    foreign = await stage.provider.create(replace(SPEC, label="dovecote-there-one"))
    endings = Endings(pool.stand, pool.evict)
    assert await endings.sweep("dovecote-here-") == 1
    assert set(stage.provider.machines) == {kept.id, foreign.id} - {orphan.id}
    assert await endings.sweep("dovecote-here-") == 0


async def test_a_sweep_removes_the_second_machine_of_a_label() -> None:
    """What a service still made for a process that died goes; the one of the row stays open and unsaved."""
    stage = Stage()
    pool = stage.pool()
    kept = await pool.acquire(WANTED)
    stage.provider.machines[SandboxId("memory-late")] = replace(stage.provider.machines[kept.id])
    endings = Endings(pool.stand, pool.evict)
    assert await endings.sweep("dovecote-here-") == 1
    assert set(stage.provider.machines) == {kept.id}
    assert pool.held(SPEC.label) is kept


async def test_a_deleted_sandbox_leaves_neither_row_nor_machine() -> None:
    """Deleting drops the row first and then destroys; a second time there is nothing to delete."""
    stage = Stage()
    pool = stage.pool()
    await pool.acquire(WANTED)
    endings = Endings(pool.stand, pool.evict)
    assert await endings.delete(SPEC.label, why="removed")
    assert not await endings.delete(SPEC.label, why="removed")
    assert (stage.register.rows, stage.provider.machines) == ({}, {})


async def test_a_full_disk_keeps_no_sandbox_alive(tmp_path: Path) -> None:
    """The end of a sandbox's time comes although its last snapshot cannot be written."""
    stage = Stage()
    blocked = tmp_path / "scratch"
    blocked.write_text("a file where a directory should be")
    stand = replace(stage.stand(), keeper=Keeper(LocalStore(tmp_path / "store"), blocked))
    pool = Pool(stand)
    await pool.acquire(WANTED)
    row = stage.register.rows[SPEC.label]
    assert await Endings(stand, pool.evict).end(row, SPEC, why="expired")
    assert (stage.register.rows, stage.provider.machines) == ({}, {})
