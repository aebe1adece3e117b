"""Replicas that share turns by shard, each with its own connection to one nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from delivery.broker.connection import NatsConnection, connect
from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
from delivery.broker.port import Lease, WorkQueue
from delivery.broker.stream_config import StreamConfig
from delivery.broker.wake_ups import JetStreamWakeUps
from delivery.errors import LeaseBusy
from delivery.events.sharding import SHARDS
from gateway.infra.replica_shares import owner_of
from gateway.infra.shard_leases import TURN_SHARDS, ShardLeases
from gateway.infra.shard_wake_ups import ShardWakeUps

STREAM_CONFIG = StreamConfig(max_bytes=500_000_000)
TTL = 2.0


class ShardReplica:
    """One replica: its leases, its wake-ups, and the shards whose work it has looked up."""

    def __init__(self, nats: NatsConnection, name: str, ttl: float) -> None:
        self.nats = nats
        self.name = name
        self.own_leases = JetStreamLeases(nats, LeaseHolder(instance=name, boot="1"))
        self.wake_ups = ShardWakeUps(nats, JetStreamWakeUps(nats, STREAM_CONFIG))
        self.may_receive = asyncio.Event()
        """Unset: a shard whose lease it has acquired is not held yet."""

        self.may_receive.set()
        self.looked_up: set[int] = set()
        self._searched = asyncio.Event()
        self.leases = ShardLeases(
            TURN_SHARDS,
            self.own_leases,
            self.own_leases,
            receive=self._receive,
            replica=name,
            ttl=ttl,
        )

    @asynccontextmanager
    async def _receive(self, queues: Collection[WorkQueue], shard: int) -> AsyncIterator[None]:
        await self.may_receive.wait()
        async with self.wake_ups.receive(queues, shard):
            yield

    async def find_work(self, shards: frozenset[int]) -> None:
        """Record that the unfinished work of shards would be looked up."""
        self.looked_up |= shards
        self._searched.set()

    async def until_looked_up(self, shards: frozenset[int]) -> None:
        """Wait until it has looked up the work of these shards, and of no others."""
        async with asyncio.timeout(60):
            while self.looked_up != shards:
                self._searched.clear()
                await self._searched.wait()


@asynccontextmanager
async def shard_replica(
    url: str, token: str | None, name: str, *, ttl: float = TTL, may_receive: bool = True
) -> AsyncIterator[ShardReplica]:
    """Run a replica until the block ends; it then releases its shards."""
    stop = asyncio.Event()
    async with connect(url, token=token) as nats:
        one = ShardReplica(nats, name, ttl)
        if not may_receive:
            one.may_receive.clear()
        task = asyncio.create_task(one.leases.run(stop, one.find_work))
        try:
            yield one
        finally:
            stop.set()
            await task


async def until_divided(*replicas: ShardReplica) -> list[frozenset[int]]:
    """Wait until each of these replicas holds the shards that belong to it; return the shards of each."""
    names = [one.name for one in replicas]
    owners = [owner_of(f"shard:{number}", names) for number in range(SHARDS)]
    parts = [frozenset(i for i, owner in enumerate(owners) if owner == name) for name in names]
    async with asyncio.timeout(60):
        while [one.leases.held for one in replicas] != parts:  # noqa: ASYNC110 - held by the broker
            await asyncio.sleep(0.02)
    return parts


@asynccontextmanager
async def working(replica: ShardReplica, name: str) -> AsyncIterator[Lease]:
    """Acquire the lease of a piece of work as soon as the replica may have it."""
    async with asyncio.timeout(60) as waiting:
        while True:
            try:
                async with replica.leases.acquire(name) as lease:
                    waiting.reschedule(None)
                    yield lease
                    return
            except LeaseBusy:
                await asyncio.sleep(0.02)
