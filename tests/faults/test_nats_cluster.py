"""Three brokers: what was confirmed survives the death of any one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from delivery.broker import jetstream_events
from delivery.broker.connection import NatsConnection, connect
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
from delivery.broker.port import WorkQueue
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.broker.wake_ups import JetStreamWakeUps
from delivery.errors import AppendConflict, BrokerUnreachable, DeliveryError, LeaseBusy
from delivery.events.event import Event, EventType
from delivery.events.replay import Events, frames
from nats_servers import NatsServer, nats_cluster

STREAM_CONFIG = StreamConfig(max_bytes=500_000_000)


class ClusterRig:
    """A cluster, and a link to all of it."""

    def __init__(
        self, servers: list[NatsServer], connection: NatsConnection, events: JetStreamEvents
    ) -> None:
        self.servers = servers
        self.connection = connection
        self.events = events

    async def leader(self) -> NatsServer:
        """Return the server that leads the events."""
        answer = await self.connection.api_request("STREAM.INFO.EVENTS")
        return self.servers[int(answer["cluster"]["leader"].removeprefix("server-"))]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ClusterRig]:
    """Run a cluster with our streams."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(nats_cluster(tmp_path / "nats"))
        urls = ",".join(server.url for server in servers)
        nats_connection = await stack.enter_async_context(connect(urls, token=servers[0].token))
        await ensure_streams(nats_connection, STREAM_CONFIG, timeout=30)
        yield ClusterRig(
            servers,
            nats_connection,
            await stack.enter_async_context(jetstream_events.open_events(nats_connection, epoch="e1")),
        )


async def append_until_stored(events: JetStreamEvents, event: Event, expected: int) -> int:
    """Append until it is stored."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await events.append(event, expected=expected, account="acc")
            except (BrokerUnreachable, AppendConflict):
                await asyncio.sleep(0.05)


async def test_the_death_of_the_leader_costs_nothing(rig: ClusterRig) -> None:
    """Events stay complete and in order, and a reader gets each once, while leaders die."""
    answer = await rig.connection.api_request("STREAM.INFO.EVENTS")
    assert answer["config"]["num_replicas"] == 3
    seqs, given = [0], list[int]()

    async def read() -> None:
        async for frame in frames(rig.events, "cnv_a", after=0, account="acc"):
            given.extend(item.seq for item in (frame.items if isinstance(frame, Events) else ()))

    reading = asyncio.create_task(read())
    for n in range(1, 61):
        if n in {20, 40}:
            leader = await rig.leader()
            await leader.kill()
            event = Event.now(EventType.JOB_STARTED, "cnv_a", {}).numbered(n)
            seqs.append(await append_until_stored(rig.events, event, seqs[-1]))
            await leader.start()
            continue
        event = Event.now(EventType.JOB_STARTED, "cnv_a", {}).numbered(n)
        seqs.append(await append_until_stored(rig.events, event, seqs[-1]))
    async with asyncio.timeout(60):
        while given[-1:] != seqs[-1:]:  # noqa: ASYNC110 - the reader's list
            await asyncio.sleep(0.05)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert given == seqs[1:]


async def test_leases_and_signals_survive_the_death_of_the_leader(rig: ClusterRig) -> None:
    """A lease stays exclusive, and a wake-up arrives, although the leader dies."""
    mine = JetStreamLeases(rig.connection, LeaseHolder(instance="one", boot="1"))
    theirs = JetStreamLeases(rig.connection, LeaseHolder(instance="two", boot="1"))
    wake_ups, stop = JetStreamWakeUps(rig.connection, STREAM_CONFIG), asyncio.Event()
    received = wake_ups.subscribe(WorkQueue.TURN, at_most=2, stop=stop)
    async with asyncio.timeout(90):
        async with mine.acquire("t:a", ttl=20) as lease:
            await (await rig.leader()).kill()
            await append_until_stored(
                rig.events, Event.now(EventType.JOB_STARTED, "cnv_b", {}).numbered(1), 0
            )
            with pytest.raises(LeaseBusy):
                async with theirs.acquire("t:a"):
                    pass
            lease.ensure_held()
        async with theirs.acquire("t:a") as lease:
            lease.ensure_held()
        waiting = asyncio.ensure_future(anext(received))
        while not waiting.done():
            await wake_ups.publish(WorkQueue.TURN, "k", account="acc_1")
            await asyncio.wait({waiting}, timeout=0.2)
        assert waiting.result().key == "k"
    stop.set()
    assert [wake_up async for wake_up in received] == []


async def test_racing_writers_on_a_cluster_make_one_order(rig: ClusterRig) -> None:
    """Of many concurrent appends exactly one is stored."""
    events = [Event.now(EventType.JOB_STARTED, "cnv_a", {}).numbered(1) for _ in range(20)]
    results = await asyncio.gather(
        *(rig.events.append(event, expected=0, account="acc") for event in events), return_exceptions=True
    )
    assert all(isinstance(result, int | DeliveryError) for result in results)
    stored = await rig.events.read("cnv_a", after=0, account="acc")
    assert len(stored) == 1
    assert sum(isinstance(result, int) for result in results) == 1
