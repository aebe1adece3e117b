"""Replicas that receive share the bots: each bot has one owner; who joins or leaves moves its own share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from channel_replicas import until
from channels.telegram.simulator import simulate
from channels.testing.connections import UpdateRecorder
from delivery.broker.connection import NatsConnection, connect
from delivery.broker.leases.jetstream_leases import JetStreamLeases, LeaseHolder
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.broker.port import Leases
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.vault import open_vault
from gateway.infra.replica_shares import RECEIVING, ReplicaShares
from gateway.infra.replica_signal import CHANNELS_CHANGED, ReplicaSignal
from gateway.ingress.channel_context import UpdateAcceptor
from gateway.ingress.channel_supervisor import RECONCILE_SECONDS, ChannelSupervisor
from gateway.records.records import Records
from gateway.store.accounts import records as store
from nats_servers import nats_server

BOTS = 12
TTL = 2.0


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite: the database has no part in this."""
    return f"sqlite+aiosqlite:///{tmp_path / 'gateway.db'}"


@asynccontextmanager
async def sharing(leases: Leases, *names: str) -> AsyncIterator[list[ReplicaShares]]:
    """Run the shares of these replicas until each has seen all others."""
    stop = asyncio.Event()
    shares = [ReplicaShares(leases, kind=RECEIVING, replica=name, ttl=TTL) for name in names]
    tasks = [asyncio.create_task(one.run(stop)) for one in shares]
    try:
        async with asyncio.timeout(60):
            for one in shares:
                while len(one._replicas) < len(names):
                    await one.next_change().wait()
        yield shares
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def test_every_bot_has_one_owner_and_a_joiner_takes_a_share_from_each() -> None:
    """Of 300 bots, three replicas have about a hundred each; a fourth takes only what becomes its own."""
    bots = [f"a:telegram:{number}" for number in range(300)]
    async with sharing(MemoryLeases(), "one", "two", "three") as three:
        before = {bot: [share._replica for share in three if share.owns(bot)] for bot in bots}
    async with sharing(MemoryLeases(), "one", "two", "three", "four") as four:
        after = {bot: [share._replica for share in four if share.owns(bot)] for bot in bots}
    assert all(len(owners) == 1 for owners in (*before.values(), *after.values()))
    assert all(
        60 < sum(owners == [name] for owners in before.values()) < 140 for name in ("one", "two", "three")
    )
    assert {after[bot][0] for bot in bots if after[bot] != before[bot]} == {"four"}


async def test_no_bot_belongs_to_a_replica_that_has_not_seen_the_others() -> None:
    """Before the first answer of the broker, a replica leaves every bot to those that receive already."""
    assert not ReplicaShares(MemoryLeases(), kind=RECEIVING, replica="one", ttl=TTL).owns("bot")


class Replicas:
    """Channel supervisors over one database and one NATS server, for as many Telegram bots as there are."""

    def __init__(self, database: Database, records: Records, url: str, token: str | None) -> None:
        self.database = database
        self.records = records
        self._url = url
        self._token = token
        self.connections: dict[str, NatsConnection] = {}

    @asynccontextmanager
    async def run(self, name: str) -> AsyncIterator[ChannelSupervisor]:
        """Run a replica with its own connection to NATS."""

        class _NoOne:
            def accept(self, _context: object) -> object:
                return UpdateRecorder().accept

        async with connect(self._url, token=self._token) as nats:
            self.connections[name] = nats
            leases = JetStreamLeases(nats, LeaseHolder(instance=name, boot="1"))
            supervisor = ChannelSupervisor(
                database=self.database,
                records=self.records,
                get_acceptor=lambda: cast("UpdateAcceptor", _NoOne()),
                leases=leases,
                may_receive=True,
                public_url=None,
                replica=name,
                changes=ReplicaSignal(nats, CHANNELS_CHANGED),
                lease_ttl=TTL,
            )
            stop = asyncio.Event()
            task = asyncio.create_task(supervisor.run(stop))
            try:
                yield supervisor
            finally:
                stop.set()
                await task


@pytest.fixture
async def replicas(database: Database, tmp_path: Path) -> AsyncIterator[Replicas]:
    """Make an account with BOTS channels, each of its own simulated bot, on a real nats-server."""
    records = Records(open_vault(tmp_path))
    async with AsyncExitStack() as stack:
        platforms = [
            await stack.enter_async_context(simulate(token=f"{number}:secret"))
            for number in range(1, BOTS + 1)
        ]
        async with database.begin() as connection:
            account, _key = await api_keys.create_account(connection, "one")
            await records.create(connection, account.id, "agent", name="main", config={})
            for number, platform in enumerate(platforms):
                settings = platform.settings(poll_seconds=1)
                config = {"kind": "telegram", "agent": "main", "settings": settings}
                await records.create(
                    connection, account.id, "channel", name=f"bot{number}", config=config, managed=True
                )
        server = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        async with connect(server.url, token=server.token) as nats:
            await ensure_streams(nats, StreamConfig(max_bytes=500_000_000))
        yield Replicas(database, records, server.url, server.token)


async def until_received(*supervisors: ChannelSupervisor, shared: bool) -> list[int]:
    """Wait until all bots are received for, by every replica if `shared`; return how many by each."""
    async with asyncio.timeout(60):
        while True:
            counts = [one.count_by_state()["receiving"] for one in supervisors]
            if sum(counts) == BOTS and (all(counts) or not shared):
                return counts
            await asyncio.sleep(0.05)


async def test_a_replica_that_joins_takes_its_share_and_gives_it_back(replicas: Replicas) -> None:
    """The first has all bots until the second joins; when that one leaves, the first has all again."""
    async with replicas.run("one") as first:
        assert await until_received(first, shared=False) == [BOTS]
        async with replicas.run("two") as second:
            counts = await until_received(first, second, shared=True)
            assert sum(counts) == BOTS
        assert await until_received(first, shared=False) == [BOTS]


async def test_the_share_of_a_replica_without_a_broker_is_taken_over(replicas: Replicas) -> None:
    """It can release nothing, as after a kill: the other one takes its bots when the leases expire."""
    async with replicas.run("one") as first, replicas.run("two") as second:
        await until_received(first, second, shared=True)
        await replicas.connections["two"]._client.close()
        assert await until_received(first, shared=False) == [BOTS]
        assert second.count_by_state()["receiving"] == 0


async def test_a_change_in_one_replica_is_known_in_all_at_once(replicas: Replicas) -> None:
    """A bot that is paused where it does not receive stops receiving elsewhere, long before the interval."""
    async with replicas.run("one") as first, replicas.run("two") as second:
        await until_received(first, second, shared=True)
        async with replicas.database.read() as connection:
            found = await store.list_all(connection, "channel")
        (record, *_) = [one for one in found if first.status(one.id)[0] == "receiving"]
        async with replicas.database.begin() as connection:
            await replicas.records.update(connection, record, patch={"paused": True}, below="")
        await second.wake(record.account, record.id)
        async with asyncio.timeout(RECONCILE_SECONDS / 3):
            await until(lambda: first.status(record.id)[0] == "paused")
