"""A stage for drafts: a database, a chat in memory, and the drafts of one process after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from channels.message import Address
from channels.port import Feature, Limits
from delivery.chat.drafts import Drafts
from delivery.chat.rate_limit import Budget
from delivery.chat.sink import Bot, ChatSink
from delivery.database.engine import Database, metadata
from delivery.deliveries import routes
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.port import Delivery, Outcome
from delivery.deliveries.route import Route
from delivery.events.event import Kind
from memory_channel import MemoryChannel

ROOM = Address(channel="chn_1", room="42")
GENEROUS = Limits(text=100, room_sends_per_second=1000, account_sends_per_second=1000, typing_seconds=5)
EDITS = frozenset({Feature.EDIT})
STREAMS = frozenset({Feature.EDIT, Feature.STREAM})


@dataclass
class Stage:
    """A database, a chat in memory, and the drafts of one process after another."""

    database: Database
    channel: MemoryChannel = field(default_factory=MemoryChannel)
    features: frozenset[Feature] = EDITS
    limits: Limits = GENEROUS

    def bot(self, limits: Limits = GENEROUS) -> Bot:
        """Return the chat's bot as one process knows it."""
        return Bot(
            channel=self.channel,
            features=self.features,
            budget=Budget(limits),
            limits=limits,
            account="acc_1",
        )

    @asynccontextmanager
    async def drafts(self, *, after: float = 0, typing_after: float = 0) -> AsyncIterator[Drafts]:
        """Run the drafts of one process."""
        found = Drafts(
            find={"chn_1": self.bot(self.limits)}.get,
            database=self.database,
            after=after,
            typing_after=typing_after,
            every=0,
        )
        stop = asyncio.Event()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(found.run(stop))
            await found.started.wait()
            yield found
            stop.set()

    async def deliver(self, drafts: Drafts, text: str, message: str = "msg_1") -> Outcome:
        """Bring the final text of a message."""
        return await self._bring(drafts, Kind.MESSAGE_COMPLETED, Part(text=text, message=message))

    async def end(self, drafts: Drafts, words: str, *, delivery: str = "dlv_9") -> Outcome:
        """Bring the words with which a turn ended early."""
        return await self._bring(drafts, Kind.TURN_FAILED, Part(text=words), delivery)

    async def _bring(self, drafts: Drafts, kind: Kind, part: Part, delivery: str = "dlv_1") -> Outcome:
        sink = ChatSink({"chn_1": self.bot()}.get, claim=drafts.claim, claim_rest=drafts.claim_rest)
        return await sink.send(
            Delivery(
                id=delivery,
                account="acc_1",
                event_id="evt_1",
                event_type=str(kind),
                event_time=datetime(2026, 1, 2, tzinfo=UTC),
                conversation="cnv_1",
                kind="chat",
                target=ROOM.dump(),
                part=0,
                body=encode_part(part),
                attempt=1,
                turn="trn_1",
            )
        )

    @property
    def texts(self) -> list[str]:
        """What a person reads."""
        return self.channel.texts("42")

    @property
    def calls(self) -> list[str]:
        """What was called."""
        return [call for call, _ in self.channel.calls]


@asynccontextmanager
async def draft_stage(directory: Path) -> AsyncIterator[Stage]:
    """Open a database with one conversation that has a chat."""
    database = Database(f"sqlite+aiosqlite:///{directory / 'gateway.db'}")
    async with database.begin() as connection:
        await connection.run_sync(metadata.create_all)
        route = Route.to_chat(account="acc_1", conversation="cnv_1", address=ROOM)
        await routes.add_route(connection, route)
    yield Stage(database)
    await database.close()
