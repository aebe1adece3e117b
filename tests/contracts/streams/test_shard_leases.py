"""Replicas share turns and deliveries by shard: one holder each, and no work is cut short when one moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from delivery.broker.connection import connect
from delivery.broker.port import Lease
from delivery.broker.stream_config import ensure_streams
from delivery.errors import LeaseBusy, LeaseLost
from delivery.events.sharding import SHARDS, work_shard
from gateway.infra.shard_leases import TURN_SHARDS
from nats_servers import NatsServer, child_process, nats_server
from shard_replicas import STREAM_CONFIG, ShardReplica, shard_replica, until_divided, working

NAMES = [f"t:cnv_{number}" for number in range(300)]

HOLDER_PROGRAM = """
import asyncio, sys
from shard_replicas import shard_replica, until_divided

async def main(url, token):
    async with shard_replica(url, token, "killed") as one:
        await until_divided(one)
        async with one.leases.acquire("t:cnv_1"):
            print("holds", flush=True)
            await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Run a server with our streams."""
    async with nats_server(tmp_path / "nats") as server:
        async with connect(server.url, token=server.token) as nats:
            await ensure_streams(nats, STREAM_CONFIG)
        yield server


def in_the_shard_of(name: str) -> str:
    """Return the name of other work in the same shard."""
    shard = work_shard(name[2:])
    return next(f"t:other_{number}" for number in range(9999) if work_shard(f"other_{number}") == shard)


class Overlaps:
    """Acquires one piece of work after the other, and records those that two replicas held at a time."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.done = 0
        self._held: dict[str, Lease] = {}

    async def work(self, replica: ShardReplica, stop: asyncio.Event) -> None:
        """Work on everything that the replica may until `stop`."""
        while not stop.is_set():
            await asyncio.gather(*(self._work_on(replica, name) for name in NAMES))
            await asyncio.sleep(0.01)

    async def _work_on(self, replica: ShardReplica, name: str) -> None:
        with suppress(LeaseBusy, LeaseLost):
            async with replica.leases.acquire(name) as lease:
                other = self._held.get(name)
                if other is not None and _is_held(other):
                    self.found.append(name)
                self._held[name] = lease
                for _ in range(4):
                    await asyncio.sleep(0.02)
                    lease.ensure_held()
                self.done += 1
                del self._held[name]


def _is_held(lease: Lease) -> bool:
    try:
        lease.ensure_held()
    except LeaseLost:
        return False
    return True


async def test_replicas_divide_the_shards_and_a_joiner_takes_only_its_own(server: NatsServer) -> None:
    """Each shard has one holder; one that joins takes some of each, and who leaves gives all back."""
    async with shard_replica(server.url, server.token, "one") as one:
        assert await until_divided(one) == [frozenset(range(SHARDS))]
        async with shard_replica(server.url, server.token, "two") as two:
            before = await until_divided(one, two)
            assert all(len(part) >= SHARDS // 4 for part in before)
            async with shard_replica(server.url, server.token, "three") as three:
                after = await until_divided(one, two, three)
                assert after[0] < before[0]
                assert after[1] < before[1]
                await three.until_looked_up(after[2])
        assert await until_divided(one) == [frozenset(range(SHARDS))]


async def test_a_shard_that_moves_while_it_is_acquired_is_released(server: NatsServer) -> None:
    """A replica that joins gets its shards although their holder was acquiring them as it joined."""
    async with shard_replica(server.url, server.token, "one", may_receive=False) as one:
        async with asyncio.timeout(60):
            while len(await one.own_leases.list_held(TURN_SHARDS.shard)) < SHARDS:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            async with shard_replica(server.url, server.token, "two") as two:
                shares = one.leases._shares
                while all(shares.owns(f"shard:{number}") for number in range(SHARDS)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                one.may_receive.set()
                await until_divided(one, two)


async def test_no_work_is_done_twice_at_a_time_while_replicas_come_and_go(server: NatsServer) -> None:
    """Two replicas never both hold a piece of work: through joins, leaves, and a replica that is cut off."""
    overlaps, stop = Overlaps(), asyncio.Event()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(shard_replica(server.url, server.token, "one"))
        await until_divided(one)
        tasks = [asyncio.create_task(overlaps.work(one, stop))]
        for name in ("two", "three"):
            async with shard_replica(server.url, server.token, name) as other:
                tasks.append(asyncio.create_task(overlaps.work(other, stop)))
                await until_divided(one, other)
                if name == "three":
                    await one.nats._close()  # as if the network were gone
                    await until_divided(other)
        stop.set()
        await asyncio.gather(*tasks)
    assert overlaps.done > len(NAMES)
    assert overlaps.found == []


async def test_work_in_progress_outlives_the_move_of_its_shard(server: NatsServer) -> None:
    """Its replica goes on; the new holder works on the rest of the shard at once, on this work afterwards."""
    async with (
        shard_replica(server.url, server.token, "one") as one,
        AsyncExitStack() as work,
        shard_replica(server.url, server.token, "two") as two,
    ):
        await until_divided(one, two)
        first = {name for name in NAMES if work_shard(name[2:]) in one.leases.held}
        running = {name: await work.enter_async_context(one.leases.acquire(name)) for name in first}
        async with shard_replica(server.url, server.token, "three") as three:
            await until_divided(one, two, three)
            moved = next(name for name in running if work_shard(name[2:]) in three.leases.held)
            async with three.leases.acquire(in_the_shard_of(moved)) as beside:
                beside.ensure_held()
            for name, lease in running.items():
                lease.ensure_held()
                for replica in (one, two, three):
                    with pytest.raises(LeaseBusy):
                        await replica.leases.acquire(name).__aenter__()
            await work.aclose()
            async with working(three, moved) as lease:
                lease.ensure_held()


async def test_work_that_a_transaction_claims_outlives_the_move_of_its_shard(server: NatsServer) -> None:
    """It is acquired where its shard is held, at once, and nowhere else until it is released."""
    async with (
        shard_replica(server.url, server.token, "one") as one,
        shard_replica(server.url, server.token, "two") as two,
    ):
        await until_divided(one, two)
        first = {name: one.leases.acquire_locally(name) for name in NAMES}
        claimed = {name: lease for name, lease in first.items() if lease is not None}
        assert set(claimed) == {name for name in NAMES if work_shard(name[2:]) in one.leases.held}
        async with shard_replica(server.url, server.token, "three") as three:
            await until_divided(one, two, three)
            moved = next(name for name in claimed if work_shard(name[2:]) in three.leases.held)
            for name, lease in claimed.items():
                lease.ensure_held()
                for replica in (one, two, three):
                    assert replica.leases.acquire_locally(name) is None
            beside = three.leases.acquire_locally(in_the_shard_of(moved))
            assert beside is not None
            beside.release()
            for lease in claimed.values():
                lease.release()
            async with working(three, moved) as again:
                again.ensure_held()


async def test_a_replica_that_stops_hands_over_what_it_does_not_work_on(server: NatsServer) -> None:
    """Its shards are another one's before its running work has ended, which stays exclusive until then."""
    async with shard_replica(server.url, server.token, "one") as one, AsyncExitStack() as stack:
        two = await stack.enter_async_context(shard_replica(server.url, server.token, "two"))
        await until_divided(one, two)
        name = next(name for name in NAMES if work_shard(name[2:]) in two.leases.held)
        context = two.leases.acquire(name)
        lease = await context.__aenter__()
        stopping = asyncio.create_task(stack.aclose())
        assert await until_divided(one) == [frozenset(range(SHARDS))]
        lease.ensure_held()
        with pytest.raises(LeaseBusy):
            await one.leases.acquire(name).__aenter__()
        assert not stopping.done()
        await context.__aexit__(None, None, None)
        await stopping
        async with working(one, name) as lease:
            lease.ensure_held()


async def test_the_shards_of_a_killed_replica_are_taken_over(server: NatsServer) -> None:
    """A replica that is killed releases nothing; others acquire its shards when its session ends."""
    async with child_process(HOLDER_PROGRAM, server) as child:
        assert child.stdout is not None
        async with asyncio.timeout(60):
            await child.stdout.readline()
        child.kill()
        async with shard_replica(server.url, server.token, "one") as one:
            assert await until_divided(one) == [frozenset(range(SHARDS))]
            async with working(one, "t:cnv_1") as lease:
                lease.ensure_held()


async def test_a_restart_on_the_same_broker_continues_with_its_shards(server: NatsServer) -> None:
    """After kill -9 of the broker, a replica holds all shards and no work is lost within the time to live."""
    async with shard_replica(server.url, server.token, "one", ttl=20) as one:
        await until_divided(one)
        async with one.leases.acquire(NAMES[0]) as lease:
            await server.restart()
            assert await one.nats.wait_connected(20)
            lease.ensure_held()
        assert await until_divided(one) == [frozenset(range(SHARDS))]


async def test_work_needs_no_message_to_the_broker(server: NatsServer) -> None:
    """A replica that holds a shard acquires and releases any number of its leases without the broker."""
    written: list[str] = []

    async def record(message: Msg) -> None:
        written.append(message.subject)

    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(shard_replica(server.url, server.token, "one", ttl=60))
        await until_divided(one)
        observer = await stack.enter_async_context(connect(server.url, token=server.token))
        await stack.enter_async_context(observer.subscribe("lease.>", record))
        await observer.api_request("INFO")
        for name in NAMES:
            async with one.leases.acquire(name) as lease:
                lease.ensure_held()
        await observer.api_request("INFO")
    assert not [subject for subject in written if subject.startswith("lease.t.")]
