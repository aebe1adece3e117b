"""A process that gets too little time attributes no delay to its broker, its leases or its turns."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from delivery.broker.connection import NatsConnection, connect
from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.broker.leases.renewal_thread import renewal_thread
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.errors import BrokerUnreachable, LeaseBusy, LeaseLost
from gateway_process import GatewayProcess, gateway
from nats_servers import NatsServer, nats_server
from turn_requests import poll_until, start_turn

STALLS = 6
STALL_SECONDS, RUN_SECONDS = 2.5, 0.4


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


async def test_a_late_loop_loses_a_lease_on_the_broker(nats_connection: NatsConnection) -> None:
    """It counts as lost, because another process may have acquired it."""
    leases = JetStreamLeases(nats_connection, LeaseHolder(instance="one", boot="1"))
    async with leases.acquire("t:a", ttl=1.0) as lease:
        time.sleep(2.5)  # noqa: ASYNC251 - the event loop is late
        with pytest.raises(LeaseLost):
            lease.ensure_held()


async def test_a_late_loop_keeps_a_lease_that_no_other_can_acquire() -> None:
    """Leases in memory do not expire: they belong to a process that has its broker to itself."""
    leases = MemoryLeases()
    async with leases.acquire("t:a", ttl=0.1) as lease:
        time.sleep(0.3)  # noqa: ASYNC251 - the event loop is late
        lease.ensure_held()


async def test_a_thread_renews_the_leases_of_a_late_loop(
    server: NatsServer, nats_connection: NatsConnection
) -> None:
    """Replicas keep their leases too; another process takes them over once they are released."""
    url = server.url.replace("://", f"://{server.token}@")
    async with renewal_thread(url) as renewals:
        leases = JetStreamLeases(nats_connection, LeaseHolder(instance="one", boot="1"), renewals)
        others = JetStreamLeases(nats_connection, LeaseHolder(instance="two", boot="1"))
        async with leases.acquire("t:a", ttl=3.0) as lease:
            time.sleep(6)  # noqa: ASYNC251 - the event loop is late
            lease.ensure_held()
            with pytest.raises(LeaseBusy):
                async with others.acquire("t:a", ttl=1.0):
                    pytest.fail("the first one holds it")
        async with others.acquire("t:a", ttl=1.0) as taken:
            taken.ensure_held()
        with pytest.raises(LeaseLost):
            lease.ensure_held()


async def test_a_reply_that_arrived_while_the_loop_was_late_is_read(nats_connection: NatsConnection) -> None:
    """A timer that fires late is no timeout; a server that is silent is one."""
    waiting = asyncio.create_task(nats_connection.publish("lease.t.x", b"", {}, timeout=0.4, tries=1))
    await asyncio.sleep(0)
    time.sleep(1.0)  # noqa: ASYNC251 - the reply arrives during this wait
    assert (await waiting).seq


async def test_a_silent_server_is_a_timeout(server: NatsServer, nats_connection: NatsConnection) -> None:
    """Only a loop that is late gets more time."""
    server.freeze()
    try:
        with pytest.raises(BrokerUnreachable):
            await nats_connection.publish("lease.t.x", b"", {}, timeout=0.4, tries=1)
    finally:
        server.thaw()


async def test_a_gateway_that_stalls_keeps_its_broker_and_its_turns(tmp_path: Path) -> None:
    """It is stopped again and again for longer than a lease lives; each turn still runs once."""
    async with gateway(tmp_path / "data", env={"DOVECOTE_LEASE_TTL": "1"}) as process:
        broker = (process.data / "nats" / "server.pid").read_text()
        turns = [(await start_turn(process, f"!sleep 8; echo dove{number}"))["turnId"] for number in range(3)]
        await _stall(process)
        for number, turn in enumerate(turns):
            ended = await poll_until(process, f"/status/{turn}", lambda found: found["state"] == "completed")
            assert (ended["attempt"], f"dove{number}" in ended["output"]) == (1, True)
        assert (process.data / "nats" / "server.pid").read_text() == broker
    assert not [line for line in process.log if "nats.stalled" in line]


async def _stall(process: GatewayProcess) -> None:
    for _ in range(STALLS):
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(STALL_SECONDS)
        os.kill(process.pid, signal.SIGCONT)
        await asyncio.sleep(RUN_SECONDS)
