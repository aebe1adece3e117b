"""Wake-ups are handled one call per key at a time, in order, and fairly among accounts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

import pytest
from structlog.testing import capture_logs

from delivery.broker.connection import connect
from delivery.broker.keyed_worker import KeyedWorker, ReservedKey
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.broker.port import Lease, Leases, WakeUps, WorkQueue
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.broker.wake_ups import JetStreamWakeUps, MemoryWakeUps
from delivery.database.engine import RowDeleted
from delivery.errors import LeaseBusy
from delivery.fair_gate import current_account
from delivery.fair_scheduler import PoolSize
from nats_servers import nats_server

PLACES = 8
QUEUE = WorkQueue.TURN


@dataclass(kw_only=True)
class KeyedWorkerHarness:
    """A worker whose calls last until `finish` is set; `started` has the account and key of each."""

    wake_ups: WakeUps
    leases: Leases = field(default_factory=MemoryLeases)
    started: list[tuple[str, str]] = field(default_factory=list)
    finish: asyncio.Event = field(default_factory=asyncio.Event)
    errors: dict[str, Exception] = field(default_factory=dict)
    woken: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work until the block ends; the calls in progress end with it."""
        stop = asyncio.Event()
        size = PoolSize(places=PLACES)
        self.worker = KeyedWorker(QUEUE, self.wake_ups, self._work, wake=self._wake, size=size)
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self.worker.run(stop))
            try:
                yield
            finally:
                stop.set()
                await asyncio.sleep(0)
                self.finish.set()

    def _wake(self, queue: WorkQueue, key: str, moment: datetime | None = None, *, account: str) -> None:
        assert moment is None
        self.woken.append(key)
        self._group.create_task(self.wake_ups.publish(queue, key, account=account))

    async def _work(self, key: str) -> None:
        self.started.append((current_account(), key))
        if key in self.errors:
            raise self.errors.pop(key)
        await self.finish.wait()

    async def work_reserved(self, key: str, lease: Lease) -> None:
        """Do the work of a reserved key."""
        lease.ensure_held()
        await self._work(key)

    def try_to_reserve(self, account: str, key: str) -> ReservedKey | None:
        """Reserve a key if the worker has a place for it."""
        return self.worker.reserve(account, key, self.leases, f"t:{key}")

    async def reserve(self, account: str, key: str) -> ReservedKey:
        """Reserve a key, once the worker runs."""
        async with asyncio.timeout(60):
            while (place := self.try_to_reserve(account, key)) is None:  # noqa: ASYNC110 - it is starting
                await asyncio.sleep(0.01)
        return place

    async def wake(self, account: str, *keys: str) -> None:
        """Wake some keys of an account."""
        for key in keys:
            await self.wake_ups.publish(QUEUE, key, account=account)

    async def wait_for_started(self, account: str, count: int) -> list[str]:
        """Wait until this many calls of an account have started; returns their keys in order."""
        async with asyncio.timeout(60):
            while len(keys := [key for owner, key in self.started if owner == account]) < count:  # noqa: ASYNC110 - started by the broker
                await asyncio.sleep(0.01)
        return keys


@pytest.fixture(params=["memory", "jetstream"])
async def harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KeyedWorkerHarness]:
    """Prepare a worker on each kind of wake-ups."""
    if request.param == "memory":
        yield KeyedWorkerHarness(wake_ups=MemoryWakeUps())
        return
    config = StreamConfig(max_bytes=500_000_000)
    async with (
        nats_server(tmp_path_factory.mktemp("nats")) as server,
        connect(server.url, token=server.token) as nats,
    ):
        await ensure_streams(nats, config)
        yield KeyedWorkerHarness(wake_ups=JetStreamWakeUps(nats, config))


async def test_another_account_starts_while_one_has_thousands_of_keys(harness: KeyedWorkerHarness) -> None:
    """Two thousand keys of one account hold seven of eight places; the other's key starts behind them."""
    keys = [f"busy{number:04}" for number in range(2000)]
    async with harness.running():
        await harness.wake("busy", *keys)
        await harness.wake("quiet", "quiet0")
        assert await harness.wait_for_started("quiet", 1) == ["quiet0"]
        assert len(harness.started) <= PLACES
        harness.finish.set()
        assert sorted(await harness.wait_for_started("busy", 2000)) == keys


async def test_a_key_that_is_woken_during_its_call_is_called_once_more(harness: KeyedWorkerHarness) -> None:
    """Any number of wake-ups during a call are one more call, never one beside it."""
    async with harness.running():
        await harness.wake("acc_1", "key")
        await harness.wait_for_started("acc_1", 1)
        for _ in range(5):
            await harness.wake("acc_1", "key", "other")
        await harness.wait_for_started("acc_1", 2)
        assert harness.started == [("acc_1", "key"), ("acc_1", "other")]
        harness.finish.set()
        assert (await harness.wait_for_started("acc_1", 3)).count("key") >= 2


@pytest.mark.parametrize("error", [LeaseBusy("key"), RowDeleted("the conversation")], ids=repr)
async def test_a_key_that_others_work_on_is_called_again(
    harness: KeyedWorkerHarness, error: Exception
) -> None:
    """Another replica's lease and a concurrent deletion are no errors: the key is woken after a moment."""
    harness.errors["key"] = error
    with capture_logs() as logged:
        async with harness.running():
            await harness.wake("acc_1", "key")
            assert await harness.wait_for_started("acc_1", 2) == ["key", "key"]
    assert not [line for line in logged if line["log_level"] == "error"]


async def test_what_waits_when_the_worker_stops_is_passed_on(harness: KeyedWorkerHarness) -> None:
    """Keys that found no place are woken again at the end, so that another replica calls them at once."""
    keys = [f"key{number}" for number in range(PLACES + 3)]
    async with harness.running():
        await harness.wake("acc_1", *keys)
        running = await harness.wait_for_started("acc_1", PLACES - 1)
        async with asyncio.timeout(60):
            await harness.wake("acc_2", "last")
            await harness.wait_for_started("acc_2", 1)
    assert set(harness.woken) <= set(keys) - set(running)
    again = KeyedWorkerHarness(wake_ups=harness.wake_ups)
    async with again.running():
        assert set(await again.wait_for_started("acc_1", 4)) == set(keys) - set(running)


async def test_a_reserved_key_is_worked_on_in_its_account(harness: KeyedWorkerHarness) -> None:
    """It holds a place and excludes other calls for the key; its work starts without a wake-up."""
    async with harness.running():
        place = await harness.reserve("acc_1", "key")
        assert harness.try_to_reserve("acc_1", "key") is None
        place.start(harness.work_reserved)
        assert await harness.wait_for_started("acc_1", 1) == ["key"]
        assert harness.try_to_reserve("acc_1", "key") is None
        assert await harness.leases.is_held("t:key")
    assert harness.started == [("acc_1", "key")]
    assert not await harness.leases.is_held("t:key")


async def test_a_key_is_reserved_with_its_lease_or_not_at_all(harness: KeyedWorkerHarness) -> None:
    """Without its lease it takes no place, and without a place it leaves the lease to others."""
    async with harness.running():
        (await harness.reserve("acc_1", "first")).release()
        async with harness.leases.acquire("t:key"):
            assert harness.try_to_reserve("acc_1", "key") is None
        places = [await harness.reserve(f"acc_{number}", f"key{number}") for number in range(PLACES)]
        assert harness.try_to_reserve("acc_9", "key") is None
        assert not await harness.leases.is_held("t:key")
        for place in places:
            place.release()
        assert not await harness.leases.is_held("t:key0")
        (await harness.reserve("acc_1", "key")).release()


async def test_a_released_key_is_woken(harness: KeyedWorkerHarness) -> None:
    """The transaction may have been committed all the same, or another one has woken the key."""
    async with harness.running():
        place = await harness.reserve("acc_1", "key")
        await harness.wake("acc_1", "key", "other")
        await harness.wait_for_started("acc_1", 1)
        place.release()
        assert await harness.wait_for_started("acc_1", 2) == ["other", "key"]


async def test_a_stop_waits_for_reserved_keys(harness: KeyedWorkerHarness) -> None:
    """The transaction may still be committed, and then its work is done."""
    async with harness.running():
        place = await harness.reserve("acc_1", "key")
        asyncio.get_running_loop().call_later(0.05, place.start, harness.work_reserved)
    assert harness.started == [("acc_1", "key")]
    assert harness.try_to_reserve("acc_1", "key") is None


async def test_no_key_is_reserved_in_a_place_for_which_others_wait(harness: KeyedWorkerHarness) -> None:
    """Work that a transaction claims passes no other work; a full account leaves places to others."""
    async with harness.running():
        await harness.wake("busy", *(f"key{number}" for number in range(PLACES)))
        await harness.wait_for_started("busy", PLACES - 1)
        while not harness.worker._scheduler.waiting("busy"):  # noqa: ASYNC110 - woken by the broker
            await asyncio.sleep(0.01)
        assert harness.try_to_reserve("busy", "key") is None
        reserved = harness.try_to_reserve("quiet", "key")
        assert reserved is not None
        assert harness.try_to_reserve("quiet", "other") is None
        reserved.release()
