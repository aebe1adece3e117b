"""Sinks with their receivers: each receiver can be made to fail in a chosen way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from channels.errors import RateLimited, Undeliverable, Unreachable
from channels.message import Address
from channels.port import ChannelFeature, ChannelLimits, Sender
from channels.telegram import plugin as telegram
from channels.telegram.simulator import Simulator, simulate
from channels.telegram.simulator.faults import Fault
from channels.testing.memory_state import MemoryChannelState
from delivery.chat.rate_limit import RateLimiter
from delivery.chat.sink import ChatSink, ConnectedBot
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.port import Delivery, Sink
from delivery.webhooks.egress import Egress
from delivery.webhooks.signing import new_secret
from delivery.webhooks.sink import WebhookSink, WebhookTarget
from egress.guard import TRUSTED
from egress.policy import EgressPolicy
from memory_channel import MemoryChannel
from webhook_receiver import WebhookReceiver, never_respond, respond, webhook_receiver

ROOM = Address(channel="chn_1", room="42")
HIGH_LIMITS = ChannelLimits(text=4096, room_sends_per_second=1000, account_sends_per_second=1000)


def make_delivery(**changes: object) -> Delivery:
    """Return a delivery of a chat part."""
    plain = Delivery(
        id="dlv_1",
        account="acc_1",
        event_id="evt_1",
        event_type="message.completed",
        event_time=datetime(2026, 1, 2, tzinfo=UTC),
        conversation="cnv_1",
        kind="chat",
        target=ROOM.encode(),
        part=0,
        body=encode_part(Part(text="hello")),
        attempt=1,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


class SinkHarness(Protocol):
    """A sink with a receiver that can be made to fail at the next attempt."""

    sink: Sink
    delivery: Delivery

    async def fail(self, how: str) -> None:
        """Make the next attempt fail: later, gone, hold or hang."""

    def attempt_ids(self) -> list[str]:
        """Return the identity of each attempt, as the far end sees it."""

    async def wait_for_attempt(self) -> None:
        """Return when an attempt has reached the far end."""

    def recover(self) -> None:
        """Let the far end answer again."""


@dataclass
class WebhookSinkHarness:
    """The webhook sink in front of a receiver."""

    sink: Sink
    receiver: WebhookReceiver
    delivery: Delivery

    async def fail(self, how: str) -> None:
        """Script the receiver's next answer."""
        script = {
            "later": respond(500),
            "gone": respond(410),
            "hold": respond(429, Retry_After="7"),
            "hang": never_respond,
        }
        self.receiver.script.append(script[how])

    def attempt_ids(self) -> list[str]:
        """Return the webhook ids."""
        return [request.headers["webhook-id"] for request in self.receiver.requests]

    async def wait_for_attempt(self) -> None:
        """Wait for a request."""
        await self.receiver.request_received.wait()

    def recover(self) -> None:
        """Only one answer was held back."""


@dataclass
class ChatSinkHarness:
    """The chat sink in front of a platform in memory."""

    sink: Sink
    channel: MemoryChannel
    delivery: Delivery

    async def fail(self, how: str) -> None:
        """Inject an error into the platform."""
        if how == "hang":
            self.channel.frozen = asyncio.Event()
            return
        problem = {"later": Unreachable(), "gone": Undeliverable(), "hold": RateLimited(7)}
        self.channel.errors.append(problem[how])

    def attempt_ids(self) -> list[str]:
        """Return the reply keys."""
        return [reply.key for _, reply in self.channel.calls]

    async def wait_for_attempt(self) -> None:
        """Wait for a call."""
        await self.channel.called.wait()

    def recover(self) -> None:
        """Let calls through again."""
        self.channel.frozen = None


@dataclass
class TelegramSinkHarness:
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

    def attempt_ids(self) -> list[str]:
        """Return the texts that were sent; Telegram has no idempotency keys."""
        return [arguments["text"] for method, arguments in self.simulator.calls if method == "sendMessage"]

    async def wait_for_attempt(self) -> None:
        """Wait for a call."""
        async with asyncio.timeout(10):
            while not self.attempt_ids():  # noqa: ASYNC110 - the simulator reports a call when it ends
                await asyncio.sleep(0.01)

    def recover(self) -> None:
        """Only one call was held back."""


@asynccontextmanager
async def open_webhook_sink() -> AsyncIterator[SinkHarness]:
    """Yield the webhook sink's stage."""
    async with (
        webhook_receiver() as receiver,
        Egress(EgressPolicy.parse("127.0.0.0/8"), total_seconds=1) as egress,
    ):
        known = WebhookTarget(url=receiver.url, secrets=(new_secret(),))

        async def lookup(endpoint: str) -> WebhookTarget | None:
            return known if endpoint == "whk_1" else None

        sink = WebhookSink(egress=egress, find_target=lookup)
        yield WebhookSinkHarness(sink, receiver, make_delivery(kind="webhook", target="whk_1", body=b"{}"))


@asynccontextmanager
async def open_chat_sink() -> AsyncIterator[SinkHarness]:
    """Yield the chat sink's stage."""
    channel = MemoryChannel()
    yield ChatSinkHarness(make_chat_sink(channel, send_seconds=1), channel, make_delivery())


def make_bot(
    channel: Sender, features: frozenset[ChannelFeature], limits: ChannelLimits = HIGH_LIMITS
) -> ConnectedBot:
    """Return a connected bot."""

    def account_of(destination: str) -> str:
        return limits.account_of(Address.room_of(destination))

    rate_limiter = RateLimiter(limits, account_of=account_of)
    return ConnectedBot(sender=channel, features=features, rate_limiter=rate_limiter, limits=limits)


def make_chat_sink(channel: MemoryChannel, *features: ChannelFeature, send_seconds: float = 5) -> ChatSink:
    """Return a chat sink that has one bot, which can edit messages unless stated otherwise."""
    bot = make_bot(channel, frozenset(features or {ChannelFeature.EDIT}))
    return ChatSink({"chn_1": bot}.get, send_seconds=send_seconds)


@asynccontextmanager
async def open_telegram_sink() -> AsyncIterator[SinkHarness]:
    """Yield the chat sink on Telegram, with a user's message in the room."""
    async with simulate() as simulator:
        await simulator.say(42, "hello")
        settings = telegram.settings.model_validate(simulator.settings())
        async with telegram.open("chn_1", settings, MemoryChannelState(), TRUSTED) as connection:
            bot = make_bot(connection.sender, telegram.features)
            sink = ChatSink({"chn_1": bot}.get, send_seconds=1)
            yield TelegramSinkHarness(sink, simulator, make_delivery())


SINKS = {"webhook": open_webhook_sink, "chat": open_chat_sink, "telegram": open_telegram_sink}
