"""Sinks on their stages: each with a far end that can be told how to behave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from channels.errors import RateLimited, Undeliverable, Unreachable
from channels.message import Address
from channels.port import Channel, Feature, Limits
from channels.telegram import plugin as telegram
from channels.telegram.simulator import Simulator, simulate
from channels.telegram.simulator.faults import Fault
from delivery.chat.rate_limit import Budget
from delivery.chat.sink import Bot, ChatSink
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.port import Delivery, Sink
from delivery.webhooks.egress import Egress, Rules
from delivery.webhooks.signing import new_secret
from delivery.webhooks.sink import Receiver, WebhookSink
from memory_channel import MemoryChannel
from memory_channel_state import MemoryNotes
from webhook_receiver import WebhookReceiver, answers, is_silent, webhook_receiver

ROOM = Address(channel="chn_1", room="42")
GENEROUS = Limits(text=4096, room_sends_per_second=1000, account_sends_per_second=1000)


def a_delivery(**changes: object) -> Delivery:
    """Return a delivery of a chat part."""
    plain = Delivery(
        id="dlv_1",
        account="acc_1",
        event_id="evt_1",
        event_type="message.completed",
        event_time=datetime(2026, 1, 2, tzinfo=UTC),
        conversation="cnv_1",
        kind="chat",
        target=ROOM.dump(),
        part=0,
        body=encode_part(Part(text="hello")),
        attempt=1,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


class Stage(Protocol):
    """A sink with a far end that can be told how to behave at the next attempt."""

    sink: Sink
    delivery: Delivery

    async def fail(self, how: str) -> None:
        """Make the next attempt meet trouble: later, gone, hold or hang."""

    def seen(self) -> list[str]:
        """Return the identity of each attempt, as the far end sees it."""

    async def reached(self) -> None:
        """Return when an attempt has reached the far end."""

    def mend(self) -> None:
        """Let the far end answer again."""


@dataclass
class WebhookStage:
    """The webhook sink in front of a receiver."""

    sink: Sink
    receiver: WebhookReceiver
    delivery: Delivery

    async def fail(self, how: str) -> None:
        """Script the receiver's next answer."""
        script = {
            "later": answers(500),
            "gone": answers(410),
            "hold": answers(429, Retry_After="7"),
            "hang": is_silent,
        }
        self.receiver.script.append(script[how])

    def seen(self) -> list[str]:
        """Return the webhook ids."""
        return [request.headers["webhook-id"] for request in self.receiver.requests]

    async def reached(self) -> None:
        """Wait for a request."""
        await self.receiver.came.wait()

    def mend(self) -> None:
        """Only one answer was held back."""


@dataclass
class ChatStage:
    """The chat sink in front of a platform in memory."""

    sink: Sink
    channel: MemoryChannel
    delivery: Delivery

    async def fail(self, how: str) -> None:
        """Put trouble into the platform."""
        if how == "hang":
            self.channel.frozen = asyncio.Event()
            return
        trouble = {"later": Unreachable(), "gone": Undeliverable(), "hold": RateLimited(7)}
        self.channel.trouble.append(trouble[how])

    def seen(self) -> list[str]:
        """Return the reply keys."""
        return [reply.key for _, reply in self.channel.calls]

    async def reached(self) -> None:
        """Wait for a call."""
        await self.channel.called.wait()

    def mend(self) -> None:
        """Let calls through again."""
        self.channel.frozen = None


@dataclass
class TelegramStage:
    """The chat sink in front of Telegram's real adapter and a simulated Telegram."""

    sink: Sink
    simulator: Simulator
    delivery: Delivery

    async def fail(self, how: str) -> None:
        """Let fate act."""
        if how == "later":
            await self.simulator.fail(418, description="Not now")
        elif how == "gone":
            await self.simulator.block(42)
        elif how == "hold":
            await self.simulator.fail(429, retry_after=7)
        else:
            self.simulator.faults.add(Fault("hang", 1))

    def seen(self) -> list[str]:
        """Return what was to be said; Telegram knows no keys."""
        return [arguments["text"] for method, arguments in self.simulator.calls if method == "sendMessage"]

    async def reached(self) -> None:
        """Wait for a call."""
        async with asyncio.timeout(10):
            while not self.seen():  # noqa: ASYNC110 - the simulator tells of a call when it ends
                await asyncio.sleep(0.01)

    def mend(self) -> None:
        """Only one call was held back."""


@asynccontextmanager
async def webhooks() -> AsyncIterator[Stage]:
    """Yield the webhook sink's stage."""
    async with webhook_receiver() as receiver, Egress(Rules.parse("127.0.0.0/8"), total_seconds=1) as egress:
        known = Receiver(url=receiver.url, secrets=(new_secret(),))

        async def lookup(endpoint: str) -> Receiver | None:
            return known if endpoint == "whk_1" else None

        sink = WebhookSink(egress=egress, lookup=lookup)
        yield WebhookStage(sink, receiver, a_delivery(kind="webhook", target="whk_1", body=b"{}"))


@asynccontextmanager
async def chats() -> AsyncIterator[Stage]:
    """Yield the chat sink's stage."""
    channel = MemoryChannel()
    yield ChatStage(a_chat_sink(channel, send_seconds=1), channel, a_delivery())


def a_bot(channel: Channel, features: frozenset[Feature], limits: Limits = GENEROUS) -> Bot:
    """Return a connected bot."""
    return Bot(channel=channel, features=features, budget=Budget(limits), limits=limits)


def a_chat_sink(channel: MemoryChannel, *features: Feature, send_seconds: float = 5) -> ChatSink:
    """Return a chat sink that knows one bot, which can edit unless it is said otherwise."""
    bot = a_bot(channel, frozenset(features or {Feature.EDIT}))
    return ChatSink({"chn_1": bot}.get, send_seconds=send_seconds)


@asynccontextmanager
async def telegram_chats() -> AsyncIterator[Stage]:
    """Yield the chat sink's stage on Telegram, where a person has said something in the room."""
    async with simulate() as simulator:
        await simulator.say(42, "hello")
        settings = telegram.settings.model_validate(simulator.settings())
        async with telegram.open("chn_1", settings, MemoryNotes()) as connection:
            bot = a_bot(connection.channel, telegram.features)
            sink = ChatSink({"chn_1": bot}.get, send_seconds=1)
            yield TelegramStage(sink, simulator, a_delivery())


STAGES = {"webhook": webhooks, "chat": chats, "telegram": telegram_chats}
