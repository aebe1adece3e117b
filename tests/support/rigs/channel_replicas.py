"""Channel supervisors of one database, as replicas run them, with a clock that moves only on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from channels.message import Update
from channels.port import Accept
from channels.testing.connections import UpdateRecorder
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.vault import open_vault
from gateway.ingress.channel_context import ChannelContext, UpdateAcceptor
from gateway.ingress.channel_health import OPERATOR_RETRY_DELAYS
from gateway.ingress.channel_supervisor import ChannelSupervisor
from gateway.records.records import Records
from gateway.store.accounts import records as store
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations


@dataclass
class ChannelReplicas:
    """One account's channel `bot`, and channel supervisors whose clock moves only on request."""

    database: Database
    records: Records
    channel: str
    leases: MemoryLeases = field(default_factory=MemoryLeases)
    now: float = 1000.0
    received: dict[str, UpdateRecorder] = field(default_factory=dict)

    @asynccontextmanager
    async def run_replica(
        self, *, receives: bool = True, operator_retry_delays: Sequence[float] = OPERATOR_RETRY_DELAYS
    ) -> AsyncIterator[ChannelSupervisor]:
        """Run a channel supervisor, as one replica does."""
        board = ChannelSupervisor(
            database=self.database,
            records=self.records,
            get_acceptor=lambda: cast("UpdateAcceptor", self),
            leases=self.leases,
            may_receive=receives,
            public_url=None,
            operator_retry_delays=operator_retry_delays,
            clock=lambda: self.now,
        )
        stop = asyncio.Event()
        task = asyncio.create_task(board.run(stop))
        try:
            yield board
        finally:
            stop.set()
            await task

    def accept(self, context: ChannelContext) -> Accept:
        """Record the updates of a channel, each once."""
        record = context.record
        recorder = self.received.setdefault(record.name, UpdateRecorder())

        async def accept(update: Update) -> None:
            async with self.database.begin() as connection:
                await conversations.record_event(
                    connection,
                    account=record.account,
                    source=record.id,
                    event_key=update.key,
                    message=update.key[:40],
                    turn=None,
                )
            if update.key not in {one.key for one in recorder.updates}:
                await recorder.accept(update)

        return accept

    async def add(self, board: ChannelSupervisor, config: dict[str, Any]) -> Record:
        """Create the channel `further`, as a request over HTTP does."""
        async with self.database.begin() as connection:
            (first,) = await store.list_all(connection, "channel")
            saved = await self.records.create(
                connection, first.account, "channel", name="further", config=config, managed=True
            )
        await board.wake(first.account, first.id)
        return saved.record

    async def set_paused(self, board: ChannelSupervisor, *, is_paused: bool) -> None:
        """Pause or resume the channel, as a request over HTTP does."""
        await self.patch(board, {"paused": is_paused})

    async def patch(self, board: ChannelSupervisor, patch: dict[str, Any]) -> None:
        """Change the channel, as a request over HTTP does."""
        async with self.database.begin() as connection:
            record = next(
                one for one in await store.list_all(connection, "channel") if one.id == self.channel
            )
            await self.records.update(connection, record, patch=patch, below="")
        await board.wake(record.account, record.id)


async def until(condition: Callable[[], object], *, pause: float = 0.005) -> None:
    """Wait until a supervisor's state changes; without a `pause` each step of the event loop is seen."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the platform reports the change to an adapter alone
            await asyncio.sleep(pause)


async def make_replicas(
    database: Database, data: Path, kind: str, settings: dict[str, Any]
) -> ChannelReplicas:
    """Store an account with an agent and the channel `bot`."""
    book = Records(open_vault(data))
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        await book.create(connection, account.id, "agent", name="main", config={})
        saved = await book.create(
            connection,
            account.id,
            "channel",
            name="bot",
            config={"kind": kind, "agent": "main", "settings": settings},
            managed=True,
        )
    return ChannelReplicas(database, book, saved.record.id)
