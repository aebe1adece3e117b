"""Measure how often a platform with token buckets refuses, and what one chat's wait costs the others.

The sending half of a gateway (worker, transactions, sink, the real Telegram adapter) runs on SQLite in this
process. First every chat gets many messages at once. Then all chats get messages slowly, once undisturbed
and once while one chat is refused for two seconds.
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
from channels.testing.memory_state import MemoryChannelState
from delivery.chat.rate_limit import RateLimiter
from delivery.chat.sink import ConnectedBot
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery_worker import DeliveryWorkerHarness, open_empty_database
from egress.guard import TRUSTED

PER_SECOND = 5
"""What the platform takes in one chat; a stretch of one second is its bucket's window."""

FIRST_CHAT = 9000
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLimitResult:
    """The result: refusals in the fullest window of a chat, texts that arrived, and times in ms."""

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
        """How much longer the other chats took while one chat waited."""
        return self.beside_p95 / self.calm_p95


@dataclass(slots=True)
class RecordingSink(Sink):
    """Records when each chat was refused and when each delivery was accepted."""

    inner: Sink
    refused_at: list[tuple[str, float]] = field(default_factory=list)
    delivered_at: dict[str, float] = field(default_factory=dict)

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once and record the outcome."""
        outcome = await self.inner.send(delivery)
        now = time.perf_counter()
        if outcome.kind is OutcomeKind.DELIVERED:
            self.delivered_at[delivery.event_id] = now
        elif "rate limited" in outcome.detail:
            self.refused_at.append((delivery.target, now))
        return outcome


@dataclass(slots=True, kw_only=True)
class ChatLimitSetup:
    """The parts of a run: worker, platform and watches."""

    platform: Simulator
    worker: DeliveryWorkerHarness
    sink: RecordingSink
    rooms: list[Address]


@asynccontextmanager
async def open_setup(directory: Path, chats: int) -> AsyncIterator[ChatLimitSetup]:
    """Run the sending half of a gateway against Telegram on loopback."""
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(simulate())
        await platform.limit(room_per_second=PER_SECOND)
        settings = plugin.settings.model_validate(platform.settings())
        state = MemoryChannelState()
        connection = await stack.enter_async_context(plugin.open("chn_1", settings, state, TRUSTED))
        limits = replace(plugin.limits, room_sends_per_second=PER_SECOND, account_sends_per_second=1000)
        rate_limiter = RateLimiter(limits, is_group=lambda _room: False)
        bot = ConnectedBot(
            sender=connection.sender, features=plugin.features, rate_limiter=rate_limiter, limits=limits
        )
        database = await stack.enter_async_context(open_empty_database(directory / "gateway.db"))
        watches: list[RecordingSink] = []
        line = DeliveryWorkerHarness(
            database=database, bots={"chn_1": bot}, wrap_sink=lambda sink: _recording(sink, watches)
        )
        await stack.enter_async_context(line.running())
        rooms = [Address(channel="chn_1", room=str(FIRST_CHAT + place)) for place in range(chats)]
        for room in rooms:
            await platform.say(int(room.room), "go")
        yield ChatLimitSetup(platform=platform, worker=line, sink=watches[0], rooms=rooms)


def _recording(sink: Sink, watches: list[RecordingSink]) -> Sink:
    watches.append(RecordingSink(sink))
    return watches[-1]


async def measure(
    directory: Path, *, chats: int = 10, messages: int = 200, calm: int = 10
) -> ChatLimitResult:
    """Send `messages` at once to every chat, then `calm` more slowly, and again while one chat waits."""
    async with open_setup(directory, chats) as stand:
        texts = [f"text {number}" for number in range(messages)]
        owed = [await stand.worker.create_deliveries(room, texts) for room in stand.rooms]
        for conversation in owed:
            await stand.worker.wait_for_states(conversation, "delivered", seconds=TIMEOUT_SECONDS)
        said = [[post.text for post in stand.platform.messages(int(room.room))] for room in stand.rooms]
        refused = list(stand.sink.refused_at)
        first, *others = stand.rooms
        alone = await _send_slowly(stand, others, calm)
        waiting = asyncio.create_task(_delay_behind_limit(stand, first))
        beside = await _send_slowly(stand, others, calm)
        return ChatLimitResult(
            chats=chats,
            messages=messages,
            lost=sum(len(set(texts) - set(received)) for received in said),
            reordered=sum(received != texts for received in said),
            refused=len(refused),
            refused_in_a_window=_max_in_window(refused),
            calm_p95=percentile(alone, 95) * 1000,
            beside_p95=percentile(beside, 95) * 1000,
            waited=await waiting,
        )


def _max_in_window(refused: list[tuple[str, float]]) -> int:
    windows = Counter((target, int(moment)) for target, moment in refused)
    return max(windows.values(), default=0)


async def _send_slowly(setup: ChatLimitSetup, rooms: list[Address], number: int) -> list[float]:
    """Send one message after the other to each chat; return how long each took from its row to the chat."""
    taken: list[float] = []

    async def speak(room: Address) -> None:
        for _ in range(number):
            begun = time.perf_counter()
            conversation = await setup.worker.create_deliveries(room, ["at leisure"])
            (one,) = await setup.worker.wait_for_states(conversation, "delivered", seconds=TIMEOUT_SECONDS)
            taken.append(setup.sink.delivered_at[one.event_id] - begun)
            await asyncio.sleep(2 / PER_SECOND)

    async with asyncio.TaskGroup() as group:
        for room in rooms:
            group.create_task(speak(room))
    return taken


async def _delay_behind_limit(setup: ChatLimitSetup, room: Address) -> float:
    """Refuse one chat for two seconds; return how long its next text took."""
    await setup.platform.fail(429, chat=int(room.room), retry_after=2)
    begun = time.perf_counter()
    conversation = await setup.worker.create_deliveries(room, ["waited"])
    await setup.worker.wait_for_states(conversation, "delivered", seconds=TIMEOUT_SECONDS)
    return time.perf_counter() - begun
