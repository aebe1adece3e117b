"""A channel that has not received for a minute makes its process not ready, until it receives again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from channel_rigs import Ear, Rig, opened, receiving
from channels.port import ChannelPlugin
from channels.registry import installed
from channels.telegram.simulator import Simulator
from delivery.broker.leases import MemoryLeases
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.vault import open_vault
from gateway.ingress.channel_health import GRACE, STEADY
from gateway.ingress.channel_supervisor import Switchboard
from gateway.ingress.receive import Accepting
from gateway.records.records import Book


@dataclass
class Bench:
    """One account's channel `bot`, and switchboards whose clock stands still until it is moved."""

    database: Database
    book: Book
    leases: MemoryLeases = field(default_factory=MemoryLeases)
    now: float = 1000.0

    @asynccontextmanager
    async def at_work(self, *, receives: bool = True) -> AsyncIterator[Switchboard]:
        """Run a switchboard, as one replica does."""

        class _Nobody:
            def accept(self, _desk: object) -> object:
                return Ear().accept

        board = Switchboard(
            database=self.database,
            book=self.book,
            reception=lambda: cast("Accepting", _Nobody()),
            leases=self.leases,
            receives=receives,
            public_url=None,
            clock=lambda: self.now,
        )
        stop = asyncio.Event()
        task = asyncio.create_task(board.run(stop))
        try:
            yield board
        finally:
            stop.set()
            await task


async def until(condition: Callable[[], object]) -> None:
    """Wait until a switchboard says something else."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for is told by a platform to an adapter
            await asyncio.sleep(0.005)


async def _bench(database: Database, data: Path, kind: str, settings: dict[str, Any]) -> Bench:
    book = Book(open_vault(data))
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        await book.create(connection, account.id, "agent", name="main", config={})
        await book.create(
            connection,
            account.id,
            "channel",
            name="bot",
            config={"kind": kind, "agent": "main", "settings": settings},
            managed=True,
        )
    return Bench(database, book)


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite: no database of another kind changes anything here."""
    return f"sqlite+aiosqlite:///{tmp_path / 'gateway.db'}"


@pytest.fixture
async def bench(database: Database, tmp_path: Path, plugin: ChannelPlugin, rig: Rig) -> Bench:
    """Return a bench with a channel of each installed kind."""
    return await _bench(database, tmp_path, plugin.name, rig.settings())


async def test_an_interruption_is_told_and_only_a_long_one_is_deafness(bench: Bench, rig: Rig) -> None:
    """Within the grace a channel is in trouble; after it, deaf; and well when it has received for a while."""
    async with bench.at_work() as board:
        await until(lambda: not board.waiting())
        bench.now += STEADY
        await rig.cut_receiving()
        await rig.say("so that a poll that waits ends")
        await until(board.troubles)
        assert "not receiving: " in board.troubles()["bot"]
        assert (board.deaf(), board.waiting()) == ({}, [])
        bench.now += GRACE + 1
        assert board.deaf()["bot"]
        await until(lambda: not board.troubles())
        assert "bot" in board.deaf(), "a moment is not enough"
        bench.now += STEADY
        assert board.deaf() == {}


async def test_a_revoked_token_is_deafness_after_the_grace(bench: Bench, rig: Rig) -> None:
    """The reason is told, without a secret."""
    async with bench.at_work() as board:
        await until(lambda: not board.waiting())
        await rig.revoke()
        await rig.cut_receiving()
        await rig.say("so that a poll that waits ends")
        await until(lambda: board.standings()["trouble"])
        bench.now += GRACE - 1
        assert board.deaf() == {}
        bench.now += 2
        (why,) = board.deaf().values()
        assert why
        assert not [secret for secret in rig.secrets if secret in why]


async def test_who_stands_by_or_only_sends_is_not_deaf(bench: Bench) -> None:
    """The other replica receives; when it goes, the one that stood by does."""
    async with bench.at_work() as first:
        await until(lambda: first.standings()["receiving"])
        async with bench.at_work(receives=False) as sender, bench.at_work() as second:
            await until(lambda: second.standings()["standby"] and sender.standings()["open"])
            bench.now += 10 * GRACE
            assert (first.deaf(), second.deaf(), sender.deaf()) == ({}, {}, {})


async def test_two_pollers_of_one_bot_are_deafness(database: Database, tmp_path: Path) -> None:
    """Telegram cuts each of them off whenever the other asks: what arrives in between does not count."""
    plugin = installed()["telegram"]
    assert plugin.simulate is not None
    async with plugin.simulate() as (simulator, _):
        settings = cast("Simulator", simulator).settings
        bench = await _bench(database, tmp_path, "telegram", settings(poll_seconds=5, conflict_seconds=0))
        async with bench.at_work() as board:
            await until(lambda: board.standings()["receiving"])
            async with (
                opened(plugin, settings(poll_seconds=5, conflict_seconds=600)) as other,
                receiving(other, Ear()),
            ):
                await until(lambda: "Conflict" in board.troubles().get("bot", ""))
                bench.now += GRACE + 1
                assert "Conflict" in board.deaf()["bot"]
