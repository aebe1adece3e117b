"""Replicas share the maintenance: each shard and each table has one, and a dead one's part is taken over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

from delivery.broker.connection import NatsConnection, connect
from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
from delivery.broker.memory_events import MemoryEvents
from delivery.broker.port import WorkQueue
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.database.engine import Database
from delivery.events import outbox
from delivery.events.event import Event, EventType
from delivery.events.relay import Relay
from delivery.events.sharding import SHARDS, shard_of
from gateway.infra.replica_shares import MAINTAINING, ReplicaShares
from gateway.maintenance.janitor import Janitor
from gateway.maintenance.work_share import FULL_SECONDS, WorkShare
from migrated import migrated_sqlite
from nats_servers import NatsServer, nats_server

TTL = 2.0
CONVERSATIONS = 40


class SharingReplica:
    """A replica's part of the maintenance, over its own connection to NATS."""

    def __init__(self, nats: NatsConnection, name: str) -> None:
        self.nats = nats
        self.now = 0.0
        leases = JetStreamLeases(nats, LeaseHolder(instance=name, boot="1"))
        self.shares = ReplicaShares(leases, kind=MAINTAINING, replica=name, ttl=TTL)
        self.share = WorkShare(self.shares, clock=lambda: self.now)


@asynccontextmanager
async def replica(server: NatsServer, name: str) -> AsyncIterator[SharingReplica]:
    """Run a replica until the block ends."""
    stop = asyncio.Event()
    async with connect(server.url, token=server.token) as nats:
        one = SharingReplica(nats, name)
        task = asyncio.create_task(one.share.run(stop))
        try:
            yield one
        finally:
            stop.set()
            await task


async def until_divided(*replicas: SharingReplica) -> list[frozenset[int]]:
    """Wait until these replicas, and no others, share the shards; return the shards of each."""
    async with asyncio.timeout(60):
        while True:
            changes = [one.shares.next_change() for one in replicas]
            parts = [one.share.take_shards() for one in replicas]
            if Counter(shard for part in parts for shard in part) == Counter(range(SHARDS)):
                return parts
            waiting = [asyncio.create_task(change.wait()) for change in changes]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in waiting:
                one.cancel()


async def test_shards_and_tables_have_one_replica_each(tmp_path: Path) -> None:
    """One that joins takes a part from each, one that loses its broker gives up its part and no other."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        async with connect(server.url, token=server.token) as nats:
            await ensure_streams(nats, StreamConfig(max_bytes=500_000_000))
        one = await stack.enter_async_context(replica(server, "one"))
        two = await stack.enter_async_context(replica(server, "two"))
        before = await until_divided(one, two)
        three = await stack.enter_async_context(replica(server, "three"))
        during = await until_divided(one, two, three)
        assert all(after < part for after, part in zip(during, before, strict=False))
        assert all(during)
        for table in ("inbox", "outbox", "turns"):
            assert sum(each.share.has_table(table) for each in (one, two, three)) == 1
        await three.nats._client.close()  # as after a kill: it can release nothing
        assert await until_divided(one, two) == before
        one.now = FULL_SECONDS
        assert one.share.take_shards() == frozenset(range(SHARDS))
        assert one.share.take_shards() == before[0]


async def _record_unpublished(database: Database) -> None:
    for number in range(CONVERSATIONS):
        conversation = f"cnv_{number}"
        async with database.begin() as connection:
            await outbox.create_stream(connection, conversation=conversation, account="acc", agent="agt")
            event = Event.now(EventType.MESSAGE_RECEIVED, conversation, {"text": "hi"})
            await outbox.record(connection, {conversation: [event]})


async def test_a_janitor_publishes_what_is_in_its_shards(tmp_path: Path) -> None:
    """Two janitors over one database publish every event, each those of its own shards."""

    def wake(queue: WorkQueue, key: str, moment: datetime | None = None, *, account: str) -> None:
        raise AssertionError((queue, key, moment, account))

    async with AsyncExitStack() as stack:
        database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
        stack.push_async_callback(database.close)
        server = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        async with connect(server.url, token=server.token) as nats:
            await ensure_streams(nats, StreamConfig(max_bytes=500_000_000))
        one = await stack.enter_async_context(replica(server, "one"))
        two = await stack.enter_async_context(replica(server, "two"))
        parts = await until_divided(one, two)
        await _record_unpublished(database)
        published = []
        for each in (one, two):
            stream, stop = MemoryEvents(), asyncio.Event()
            relay = Relay(database, stream, lambda _point: None)
            await Janitor(database, relay, wake, share=each.share).run_once(timedelta(0))
            stop.set()
            await relay.run(stop)
            published.append(
                {
                    name
                    for name in (f"cnv_{number}" for number in range(CONVERSATIONS))
                    if await stream.tail(name, account="acc") is not None
                }
            )
    for part, conversations in zip(parts, published, strict=True):
        assert {shard_of("acc", name) for name in conversations} <= part
    assert sum(map(len, published)) == CONVERSATIONS
    assert len(published[0] | published[1]) == CONVERSATIONS


def test_the_shard_of_a_conversation_never_changes() -> None:
    """Subjects on brokers contain it."""
    known = {("acc_1", "cnv_1"): 27, ("acc_1", "cnv_2"): 26, ("", "é🕊"): 61}
    assert {key: shard_of(*key) for key in known} == known
