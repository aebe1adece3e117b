"""A stage for drafts: a database, a chat in memory, and the drafts of one process after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from channels.message import Address
from channels.port import ChannelFeature, ChannelLimits
from delivery.chat.drafts import Drafts
from delivery.chat.rate_limit import RateLimiter
from delivery.chat.sink import ChatSink, ConnectedBot
from delivery.database.engine import Database
from delivery.deliveries import routes
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.port import Delivery, Outcome
from delivery.deliveries.route import Route
from delivery.events.event import EventType
from memory_channel import MemoryChannel
from migrated import migrated_sqlite

ROOM = Address(channel="chn_1", room="42")
HIGH_LIMITS = ChannelLimits(
    text=100, room_sends_per_second=1000, account_sends_per_second=1000, typing_seconds=5
)
EDITS = frozenset({ChannelFeature.EDIT})
STREAMS = frozenset({ChannelFeature.EDIT, ChannelFeature.STREAM})
STEPS = STREAMS | {ChannelFeature.STEPS}
STATUS_LINE = EDITS | {ChannelFeature.DELETE}


@dataclass
class DraftHarness:
    """A database, a chat in memory, and the drafts of one process after another."""

    database: Database
    channel: MemoryChannel = field(default_factory=MemoryChannel)
    features: frozenset[ChannelFeature] = EDITS
    limits: ChannelLimits = HIGH_LIMITS
    verbosity: bool | None = None
    verbosity_asked: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned_checked: asyncio.Event = field(default_factory=asyncio.Event)

    async def get_verbosity(self, _address: Address) -> bool | None:
        """Return what the room wants."""
        self.verbosity_asked.set()
        return self.verbosity

    def bot(self, limits: ChannelLimits = HIGH_LIMITS) -> ConnectedBot:
        """Return the chat's bot as one process sees it."""
        return ConnectedBot(
            sender=self.channel,
            features=self.features,
            rate_limiter=RateLimiter(limits),
            limits=limits,
            account="acc_1",
        )

    @asynccontextmanager
    async def drafts(
        self, *, after: float = 0, typing_after: float = 0, ended_turns: Collection[str] = ()
    ) -> AsyncIterator[Drafts]:
        """Run the drafts of one process."""
        self.abandoned_checked = asyncio.Event()

        async def get_ended_turns(_turns: Sequence[str]) -> Collection[str]:
            self.abandoned_checked.set()
            return ended_turns

        found = Drafts(
            get_bot={"chn_1": self.bot(self.limits)}.get,
            database=self.database,
            draft_delay=after,
            typing_delay=typing_after,
            update_interval=0,
            step_delay=after,
            wait_delay=after,
            get_verbosity=self.get_verbosity,
            get_ended_turns=get_ended_turns,
            abandoned_delay=0,
        )
        stop = asyncio.Event()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(found.run(stop))
            await found.started.wait()
            yield found
            stop.set()

    async def deliver_final_text(
        self,
        drafts: Drafts,
        text: str,
        message: str = "msg_1",
        *,
        target: Address = ROOM,
        uncertain: bool = False,
    ) -> Outcome:
        """Bring the final text of a message; `uncertain`: an earlier attempt may have arrived."""
        part = Part(text=text, message=message)
        return await self._deliver(
            drafts, EventType.MESSAGE_COMPLETED, part, target=target, uncertain=uncertain
        )

    async def deliver_turn_end(self, drafts: Drafts, text: str, *, delivery: str = "dlv_9") -> Outcome:
        """Bring the words with which a turn ended early."""
        return await self._deliver(drafts, EventType.TURN_FAILED, Part(text=text), delivery)

    async def _deliver(
        self,
        drafts: Drafts,
        kind: EventType,
        part: Part,
        delivery: str = "dlv_1",
        *,
        target: Address = ROOM,
        uncertain: bool = False,
    ) -> Outcome:
        sink = ChatSink(
            {"chn_1": self.bot()}.get, claim=drafts.claim, claim_unfinished=drafts.claim_unfinished
        )
        return await sink.send(
            Delivery(
                id=delivery,
                account="acc_1",
                event_id="evt_1",
                event_type=str(kind),
                event_time=datetime(2026, 1, 2, tzinfo=UTC),
                conversation="cnv_1",
                kind="chat",
                target=target.encode(),
                part=0,
                body=encode_part(part),
                attempt=1,
                turn="trn_1",
                uncertain=uncertain,
            )
        )

    @property
    def visible_texts(self) -> list[str]:
        """What a person reads."""
        return self.channel.texts("42")

    @property
    def platform_calls(self) -> list[str]:
        """What was called."""
        return [call for call, _ in self.channel.calls]


@asynccontextmanager
async def open_draft_harness(directory: Path) -> AsyncIterator[DraftHarness]:
    """Open a database with one conversation that has a chat."""
    database = Database(await migrated_sqlite(directory / "gateway.db"))
    async with database.begin() as connection:
        route = Route.to_chat(account="acc_1", conversation="cnv_1", address=ROOM)
        await routes.add_route(connection, route)
    yield DraftHarness(database)
    await database.close()
