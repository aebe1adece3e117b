"""G5: a process that was frozen past its lease notices it before it acts; a frozen broker harms no holder."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic

import pytest

from delivery.broker.connection import NatsConnection, connect
from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
from delivery.broker.port import Lease
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.errors import BrokerUnreachable, LeaseBusy, LeaseLost
from nats_servers import NatsServer, child_process, nats_server

HOLDER_PROGRAM = """
import asyncio, sys, time
import structlog
from delivery.errors import LeaseLost
from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
from delivery.broker.connection import connect

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main(url, token):
    async with connect(url, token=token) as link:
        leases = JetStreamLeases(link, LeaseHolder(instance="child", boot="1"))
        async with leases.acquire("t:a", ttl=1.0) as lease:
            while True:
                try:
                    lease.ensure_held()
                except LeaseLost:
                    print("lost", flush=True)
                    return
                print(time.monotonic(), flush=True)
                await asyncio.sleep(0.02)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Run a server."""
    async with nats_server(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def nats_connection(server: NatsServer) -> AsyncIterator[NatsConnection]:
    """Connect to a server with our streams."""
    async with connect(server.url, token=server.token) as nats_connection:
        await ensure_streams(nats_connection, StreamConfig(max_bytes=500_000_000))
        yield nats_connection


async def test_a_frozen_holder_is_succeeded_and_never_acts_again(
    server: NatsServer, nats_connection: NatsConnection
) -> None:
    """Another process takes over while the holder is frozen; after it wakes, its first check fails."""
    leases = JetStreamLeases(nats_connection, LeaseHolder(instance="other", boot="1"))
    async with child_process(HOLDER_PROGRAM, server) as child, asyncio.timeout(30):
        assert child.stdout is not None
        await child.stdout.readline()
        child.send_signal(signal.SIGSTOP)
        async with AsyncExitStack() as stack:
            lease = await take_over_lease(leases, stack)
            taken = monotonic()
            child.send_signal(signal.SIGCONT)
            *acts, end = (await child.stdout.read()).split()
            lease.ensure_held()
    assert end == b"lost"
    assert all(float(moment) < taken for moment in acts)


async def take_over_lease(leases: JetStreamLeases, stack: AsyncExitStack) -> Lease:
    """Take the lease over as soon as it is free."""
    while True:
        try:
            return await stack.enter_async_context(leases.acquire("t:a", ttl=6))
        except LeaseBusy:
            await asyncio.sleep(0.05)


async def test_a_holder_outlives_a_broker_that_is_paused_for_less_than_its_lease(
    server: NatsServer, nats_connection: NatsConnection
) -> None:
    """A pause of the broker shorter than the time to live costs the holder nothing."""
    async with JetStreamLeases(nats_connection, LeaseHolder(instance="one", boot="1")).acquire(
        "t:a", ttl=6
    ) as lease:
        server.freeze()
        asyncio.get_running_loop().call_later(1.5, server.thaw)
        async with asyncio.timeout(20):
            while True:
                lease.ensure_held()
                try:
                    await nats_connection.publish("lease.t.other", b"", {})
                    break
                except BrokerUnreachable:
                    continue
        lease.ensure_held()


async def test_a_holder_stops_trusting_a_lease_that_it_cannot_renew(
    server: NatsServer, nats_connection: NatsConnection
) -> None:
    """A holder stops trusting its lease before a broker that is frozen for longer could give it away."""
    async with JetStreamLeases(nats_connection, LeaseHolder(instance="one", boot="1")).acquire(
        "t:a", ttl=1
    ) as lease:
        server.freeze()
        try:
            async with asyncio.timeout(10):
                await lease.wait_lost()
            with pytest.raises(LeaseLost):
                lease.ensure_held()
        finally:
            server.thaw()
