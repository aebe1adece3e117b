"""A platform with token buckets: how often it has to say no, and what one chat's wait costs the others.

The sending half of a gateway (worker, ledger, sink, the real Telegram adapter) on SQLite, in this process.
First every chat has much to say at once; then all of them say things at their leisure, and in the middle of
it one is told to wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.meters import percentile
from channels.message import Address
from channels.telegram import plugin
from channels.telegram.simulator import Simulator, simulate
from delivery.chat.rate_limit import Budget
from delivery.chat.sink import Bot
from delivery.deliveries.port import Delivery, Outcome, Sink, Verdict
from delivery_worker import Line, an_empty_database
from memory_channel_state import MemoryNotes

PER_SECOND = 5
"""What the platform takes in one chat; a stretch of one second is its bucket's window."""

FIRST_CHAT = 9000
PATIENCE = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What came of it: refusals in the fullest window of a chat, texts that came, and times in ms."""

    chats: int
    messages: int
    lost: int
    reordered: int
    refused: int
    refused_in_a_window: int
    calm_p95: float
    beside_p95: float
    waited: float

    @property
    def ratio(self) -> float:
        """How much longer the others took while one chat waited."""
        return self.beside_p95 / self.calm_p95


@dataclass(slots=True)
class Watch(Sink):
    """Remembers when which chat was refused, and when which delivery was taken."""

    inner: Sink
    refused: list[tuple[str, float]] = field(default_factory=list)
    taken: dict[str, float] = field(default_factory=dict)

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once and note what came of it."""
        outcome = await self.inner.send(delivery)
        now = time.perf_counter()
        if outcome.verdict is Verdict.DELIVERED:
            self.taken[delivery.event_id] = now
        elif "rate limited" in outcome.detail:
            self.refused.append((delivery.target, now))
        return outcome


@dataclass(slots=True, kw_only=True)
class Ground:
    """What a run stands on."""

    platform: Simulator
    line: Line
    watch: Watch
    rooms: list[Address]


@asynccontextmanager
async def ground(directory: Path, chats: int) -> AsyncIterator[Ground]:
    """Run the sending half of a gateway against Telegram on loopback."""
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(simulate())
        await platform.limit(room_per_second=PER_SECOND)
        settings = plugin.settings.model_validate(platform.settings())
        connection = await stack.enter_async_context(plugin.open("chn_1", settings, MemoryNotes()))
        limits = replace(plugin.limits, room_sends_per_second=PER_SECOND, account_sends_per_second=1000)
        budget = Budget(limits, crowded=lambda _room: False)
        bot = Bot(channel=connection.channel, features=plugin.features, budget=budget, limits=limits)
        url = f"sqlite+aiosqlite:///{directory / 'gateway.db'}"
        database = await stack.enter_async_context(an_empty_database(url))
        watches: list[Watch] = []
        line = Line(database=database, bots={"chn_1": bot}, watched=lambda sink: _watched(sink, watches))
        await stack.enter_async_context(line.running())
        rooms = [Address(channel="chn_1", room=str(FIRST_CHAT + place)) for place in range(chats)]
        for room in rooms:
            await platform.say(int(room.room), "go")
        yield Ground(platform=platform, line=line, watch=watches[0], rooms=rooms)


def _watched(sink: Sink, watches: list[Watch]) -> Sink:
    watches.append(Watch(sink))
    return watches[-1]


async def measure(directory: Path, *, chats: int = 10, messages: int = 200, calm: int = 10) -> Limits:
    """Say `messages` at once in every chat, then `calm` more at leisure, and again while one chat waits."""
    async with ground(directory, chats) as stand:
        texts = [f"text {number}" for number in range(messages)]
        owed = [await stand.line.owe(room, texts) for room in stand.rooms]
        for conversation in owed:
            await stand.line.until(conversation, "delivered", seconds=PATIENCE)
        said = [[post.text for post in stand.platform.messages(int(room.room))] for room in stand.rooms]
        refused = list(stand.watch.refused)
        first, *others = stand.rooms
        alone = await _leisurely(stand, others, calm)
        waiting = asyncio.create_task(_told_to_wait(stand, first))
        beside = await _leisurely(stand, others, calm)
        return Limits(
            chats=chats,
            messages=messages,
            lost=sum(len(set(texts) - set(heard)) for heard in said),
            reordered=sum(heard != texts for heard in said),
            refused=len(refused),
            refused_in_a_window=_fullest(refused),
            calm_p95=percentile(alone, 95) * 1000,
            beside_p95=percentile(beside, 95) * 1000,
            waited=await waiting,
        )


def _fullest(refused: list[tuple[str, float]]) -> int:
    windows = Counter((target, int(moment)) for target, moment in refused)
    return max(windows.values(), default=0)


async def _leisurely(stand: Ground, rooms: list[Address], number: int) -> list[float]:
    """Say one thing after the other in each chat; return how long each took from its row to the chat."""
    taken: list[float] = []

    async def speak(room: Address) -> None:
        for _ in range(number):
            begun = time.perf_counter()
            conversation = await stand.line.owe(room, ["at leisure"])
            (one,) = await stand.line.until(conversation, "delivered", seconds=PATIENCE)
            taken.append(stand.watch.taken[one.event_id] - begun)
            await asyncio.sleep(2 / PER_SECOND)

    async with asyncio.TaskGroup() as group:
        for room in rooms:
            group.create_task(speak(room))
    return taken


async def _told_to_wait(stand: Ground, room: Address) -> float:
    """Refuse one chat for two seconds; return how long its next text took."""
    await stand.platform.fail(429, chat=int(room.room), retry_after=2)
    begun = time.perf_counter()
    conversation = await stand.line.owe(room, ["waited"])
    await stand.line.until(conversation, "delivered", seconds=PATIENCE)
    return time.perf_counter() - begun
