"""Snapshots that a store did not accept are taken again, without another turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from delivery.fair_gate import FairGate
from delivery.fair_scheduler import PoolSize
from gateway.maintenance.snapshot_worker import SnapshotWorker
from pool_harness import REQUEST, SPEC, PoolHarness
from sandbox.errors import ProviderUnreachable
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import Reservation, SandboxRequest
from sandbox.lifecycle.snapshotter import Snapshotter
from sandbox.lifecycle.teardown import Teardown
from sandbox.lifecycle.unsaved import UnsavedSandboxes
from sandbox.model import ExecRequest
from sandbox.snapshots.local import LocalSnapshotStore


class UnreliableStore(LocalSnapshotStore):
    """A store that does not answer while `away`."""

    away = True
    attempts = 0

    async def put(self, name: str, archive: Path) -> None:
        """Store a snapshot, if the store answers."""
        self.attempts += 1
        if self.away:
            raise ProviderUnreachable("the store does not answer")
        await super().put(name, archive)


@pytest.fixture
def store(tmp_path: Path) -> UnreliableStore:
    """Return a store that does not answer."""
    return UnreliableStore(tmp_path / "store")


@pytest.fixture
def harness() -> PoolHarness:
    """Return a provider and a register in memory."""
    return PoolHarness()


@pytest.fixture
def pool(harness: PoolHarness, store: UnreliableStore, tmp_path: Path) -> Pool:
    """Return a pool that keeps snapshots in the store."""
    return Pool(replace(harness.backend(), snapshotter=Snapshotter(store, tmp_path / "scratch")))


async def end_turn(pool: Pool) -> None:
    """Use the sandbox, and take the snapshot that the store refuses."""
    await pool.acquire(REQUEST)
    with pytest.raises(ProviderUnreachable):
        await pool.snapshots.save(REQUEST)


async def request_of(_row: Reservation) -> SandboxRequest:
    """Return the request for the only sandbox."""
    return REQUEST


@asynccontextmanager
async def retries(pool: Pool) -> AsyncIterator[None]:
    """Run the retries during the block."""
    stop = asyncio.Event()
    task = asyncio.create_task(
        SnapshotWorker({"memory": pool}, request_of, FairGate(PoolSize(places=4)), interval=0.01).run(stop)
    )
    try:
        yield
    finally:
        stop.set()
        await task


async def wait_for_snapshot(harness: PoolHarness) -> None:
    """Return once the row names a snapshot."""
    async with asyncio.timeout(30):
        while harness.reservations.rows[SPEC.label].snapshot is None:  # noqa: ASYNC110 - a condition
            await asyncio.sleep(0.01)


async def test_a_snapshot_is_taken_again_once_the_store_answers(
    harness: PoolHarness, store: UnreliableStore, pool: Pool
) -> None:
    """No turn is needed, also if the sandbox is no longer open in this process."""
    await end_turn(pool)
    pool.evict(SPEC.label)
    store.away = False
    async with retries(pool):
        harness.now += timedelta(seconds=15)
        await wait_for_snapshot(harness)
    harness.now += timedelta(hours=1)
    assert (pool.unsaved.list_due(), store.attempts) == ([], 2)


async def test_a_snapshot_is_taken_again_after_a_restart(
    harness: PoolHarness, store: UnreliableStore, tmp_path: Path
) -> None:
    """Another process saves what was used since its last snapshot, and nothing that was saved."""

    def pool() -> Pool:
        return Pool(replace(harness.backend(), snapshotter=Snapshotter(store, tmp_path / "scratch")))

    await end_turn(pool())
    store.away = False
    async with retries(pool()):
        await wait_for_snapshot(harness)
    last = pool()
    harness.now += timedelta(seconds=1)
    await last.use(REQUEST, lambda sandbox: sandbox.keep_alive(1.0))
    harness.now += timedelta(seconds=1)
    await last.snapshots.save(REQUEST)
    assert (harness.reservations.rows[SPEC.label].is_unsaved, store.attempts) == (False, 2)


async def test_a_turn_that_is_saved_needs_no_retry(
    harness: PoolHarness, store: UnreliableStore, pool: Pool
) -> None:
    """The snapshot of the next turn holds what the earlier one left."""
    await end_turn(pool)
    store.away = False
    await pool.snapshots.save(REQUEST)
    harness.now += timedelta(hours=1)
    assert pool.unsaved.list_due() == []


class SlowStore(LocalSnapshotStore):
    """A store that takes a snapshot after an event."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()

    async def put(self, name: str, archive: Path) -> None:
        """Store a snapshot after the event."""
        self.begun.set()
        await self.goes_on.wait()
        await super().put(name, archive)


def make_slow_pool(harness: PoolHarness, tmp_path: Path) -> tuple[Pool, SlowStore]:
    """Return a pool with a store that waits for an event."""
    store = SlowStore(tmp_path / "store")
    return Pool(replace(harness.backend(), snapshotter=Snapshotter(store, tmp_path / "scratch"))), store


async def keep(pool: Pool, text: str) -> None:
    """Write a file in HOME by a command of a turn, whose end makes a snapshot due."""
    result = await pool.use(REQUEST, lambda sandbox: sandbox.run(ExecRequest(script=f"keep note {text}")))
    assert result.ok
    pool.plan_snapshot(REQUEST)


async def test_a_command_does_not_wait_for_the_upload_of_a_snapshot(
    harness: PoolHarness, tmp_path: Path
) -> None:
    """It runs while the store takes a snapshot, and what it changes is saved after that."""
    pool, store = make_slow_pool(harness, tmp_path)
    async with retries(pool):
        await keep(pool, "first")
        await store.begun.wait()
        async with asyncio.timeout(30):
            await keep(pool, "second")
        store.goes_on.set()
        await wait_for_snapshot(harness)
        first = harness.reservations.rows[SPEC.label].snapshot
        async with asyncio.timeout(30):
            while harness.reservations.rows[SPEC.label].snapshot == first:  # noqa: ASYNC110 - a condition
                await asyncio.sleep(0.01)
    harness.provider.instances.clear()
    again = await Pool(pool.backend).use(REQUEST, lambda found: found.run(ExecRequest(script="kept note")))
    assert again.stdout == b"second"


async def test_a_suspension_during_the_upload_loses_no_snapshot(harness: PoolHarness, tmp_path: Path) -> None:
    """The row has another version then, and the same instance and snapshot."""
    pool, store = make_slow_pool(harness, tmp_path)
    async with retries(pool):
        await keep(pool, "text")
        await store.begun.wait()
        row = harness.reservations.rows[SPEC.label]
        assert await Teardown(pool.backend, pool.evict).suspend(row, SPEC, reason="idle")
        store.goes_on.set()
        await wait_for_snapshot(harness)
    assert not harness.reservations.rows[SPEC.label].is_unsaved


async def test_a_snapshot_of_a_former_instance_is_dropped(harness: PoolHarness, tmp_path: Path) -> None:
    """An instance that was replaced during the upload has files of its own."""
    pool, store = make_slow_pool(harness, tmp_path)
    await keep(pool, "text")
    saving = asyncio.create_task(pool.snapshots.save(REQUEST))
    await store.begun.wait()
    harness.provider.instances.clear()
    pool.evict(SPEC.label)
    await pool.acquire(REQUEST)
    store.goes_on.set()
    await saving
    assert (harness.reservations.rows[SPEC.label].snapshot, await store.list()) == (None, [])


async def test_a_sandbox_that_was_deleted_and_made_again_gets_no_snapshot_of_the_first(
    harness: PoolHarness, tmp_path: Path
) -> None:
    """What was deleted during the upload does not come back in the row with the same label."""
    pool, store = make_slow_pool(harness, tmp_path)
    await keep(pool, "text")
    saving = asyncio.create_task(pool.snapshots.save(REQUEST))
    await store.begun.wait()
    assert await Teardown(pool.backend, pool.evict).delete(SPEC.label, reason="asked")
    harness.now += timedelta(seconds=1)
    await pool.acquire(REQUEST)
    store.goes_on.set()
    await saving
    assert (harness.reservations.rows[SPEC.label].snapshot, await store.list()) == (None, [])


async def test_a_stop_saves_what_the_last_turns_used(harness: PoolHarness, tmp_path: Path) -> None:
    """The snapshots that are due when the gateway stops are taken."""
    pool = Pool(
        replace(
            harness.backend(),
            snapshotter=Snapshotter(LocalSnapshotStore(tmp_path / "store"), tmp_path / "scratch"),
        )
    )
    async with retries(pool):
        await asyncio.sleep(0)
        await keep(pool, "text")
    assert harness.reservations.rows[SPEC.label].snapshot is not None


async def test_a_sandbox_that_is_gone_is_not_tried_again(harness: PoolHarness, pool: Pool) -> None:
    """Nothing can be saved of an instance that its provider does not have."""
    await end_turn(pool)
    harness.provider.instances.clear()
    await pool.snapshots.save(REQUEST)
    harness.now += timedelta(hours=1)
    assert pool.unsaved.list_due() == []


def test_the_delay_grows_up_to_ten_minutes(harness: PoolHarness) -> None:
    """It doubles with each failure, so a store that is away is not asked all the time."""
    unsaved = UnsavedSandboxes(lambda: harness.now)
    delays = []
    for _ in range(40):
        unsaved.add(REQUEST, unsaved.begin(SPEC.label))
        begun = harness.now
        while not unsaved.list_due():
            harness.now += timedelta(seconds=5)
        delays.append((harness.now - begun).total_seconds())
    assert delays == [15, 30, 60, 120, 240, 480, *[600] * 34]
