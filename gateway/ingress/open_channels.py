"""The channels that are open in this process, as replies, deliveries and status pages use them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import structlog

from channels.errors import ChannelError, Unreachable
from channels.message import Address, ButtonPress, Command, Message, StatusReaction
from channels.port import (
    ChannelFeature,
    ChannelInstallations,
    ChannelLimits,
    ChannelPlugin,
    Connection,
    WebhookRequest,
    WebhookResponse,
)
from channels.settings import ChannelSettings
from delivery.chat.rate_limit import RateLimiter
from delivery.chat.sink import ConnectedBot
from delivery.deliveries.attempt import AmbiguityPolicy
from delivery.deliveries.port import Delivery
from delivery.deliveries.route import bot_destination
from gateway.ingress.bot_claims import BotClaims
from gateway.ingress.channel_context import UpdateAcceptor, channel_identity
from gateway.ingress.channel_health import ReceiverHealth
from gateway.ingress.receive import ChannelContext
from gateway.store.accounts.records import Record

log = structlog.get_logger(__name__)

UNKNOWN_LIMITS = ChannelLimits(text=2000)
"""The limits that are assumed for a channel of an unknown kind."""

CHANNEL_STATES = ("receiving", "standby", "paused", "stalled", "trouble", "open", "closed")
"""States of a channel in this process.

`trouble` is an error, or refused credentials; `stalled` is a minute without receiving.
"""

SHARED_BOT = "is the same bot or page, and receives for it because"
"""Why a channel only sends, after the name of the other channel and before the reason."""

SHARED_BOT_REMEDY = "delete or pause one of the two, or give this one a bot of its own"

REACTION_TIMEOUT = 5.0


@dataclass(slots=True)
class ChannelTask:
    """One open channel of this process and its task."""

    record: Record
    plugin: ChannelPlugin
    context: ChannelContext
    settings: ChannelSettings
    rate_limiter: RateLimiter
    health: ReceiverHealth
    bot: str
    """The platform and the account there, which only one channel receives for, in one process at a time."""
    is_paused: bool = False
    connection: Connection | None = None
    error: str = ""
    is_verified: bool = False
    """Whether the platform has accepted these settings."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Why sends are refused, by the account at the platform whose credentials are not accepted."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    receiving: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None


class OpenChannels:
    """The open channels by record id. A channel without a connection answers as if it were absent."""

    def __init__(
        self, *, get_acceptor: Callable[[], UpdateAcceptor], may_receive: bool, claims: BotClaims
    ) -> None:
        self._get_acceptor = get_acceptor
        self._may_receive = may_receive
        self._channels: dict[str, ChannelTask] = {}
        self._claims = claims
        self.wake_destination: Callable[[str, str], None] = lambda _destination, _account: None
        """Called with a destination whose deliveries are due again, and its account."""
        self._unopened: dict[str, str] = {}
        """Why the records that cannot be opened are not."""
        self._existing: Container[str] = ()
        """The channels that exist, by the last look at the database."""
        self.is_loaded = False
        """Whether the channels have been read from the database."""

    def get_bot(self, channel: str) -> ConnectedBot | None:
        """Return a connected bot for the chat sink, or None."""
        task = self._channels.get(channel)
        if task is None or task.connection is None:
            return None
        return ConnectedBot(
            sender=task.connection.sender,
            features=task.plugin.features,
            rate_limiter=task.rate_limiter,
            limits=task.plugin.limits,
            account=task.record.account,
            policy=AmbiguityPolicy(task.settings.ambiguous),
        )

    def connection_error(self, channel: str) -> str:
        """Return why a channel is not connected, or an empty text."""
        task = self._channels.get(channel)
        return self._unopened.get(channel, "") if task is None else task.error

    def can_resolve(self, delivery: Delivery) -> bool:
        """Return whether the platform can look up or deduplicate a message that may have arrived."""
        task = self._channels.get(Address.decode(delivery.target).channel)
        return task is not None and bool(
            {ChannelFeature.FIND, ChannelFeature.IDEMPOTENT_SEND} & task.plugin.features
        )

    def pause_bot(self, destination: str, seconds: float) -> None:
        """Pause the sends of a destination's bot for some seconds, as its platform demanded.

        They are those to all chats that share the limits of the destination's account at the platform.
        """
        task = self._channels.get(json.loads(destination)[0])
        if task is not None:
            task.rate_limiter.pause_account(seconds, of=destination)

    def note_credentials(self, address: Address, refusal: str) -> None:
        """Note why a platform refuses the credentials of a bot; "" if it accepts them."""
        task = self._channels.get(address.channel)
        if task is None:
            return
        account = task.plugin.limits.account_of(address.room)
        if refusal:
            task.refusals[account] = refusal
        else:
            task.refusals.pop(account, None)

    def bot_destination(self, destination: str) -> str:
        """Return the destination of all chats that share the limits of a destination's account."""
        channel, room = json.loads(destination)
        return bot_destination(destination, self.limits(channel).account_of(room))

    def policy(self, delivery: Delivery) -> AmbiguityPolicy:
        """Return the ambiguity policy of a delivery's channel."""
        task = self._channels.get(Address.decode(delivery.target).channel)
        return AmbiguityPolicy(task.settings.ambiguous) if task else AmbiguityPolicy.AT_LEAST_ONCE

    def limits(self, channel: str) -> ChannelLimits:
        """Return a channel's limits for planning deliveries."""
        task = self._channels.get(channel)
        return task.plugin.limits if task else UNKNOWN_LIMITS

    def accepts_files(self, channel: str) -> bool:
        """Return whether bots can send files in a channel."""
        task = self._channels.get(channel)
        return task is None or ChannelFeature.UPLOAD in task.plugin.features

    def typing_seconds(self, channel: str) -> float:
        """Return how many seconds a typing indicator of the channel lasts."""
        return self.limits(channel).typing_seconds

    async def receive(self, channel: str, request: WebhookRequest) -> WebhookResponse | None:
        """Pass a webhook request to a channel's receiver; None if there is no such channel.

        503 if the channel does not receive now: it is not loaded, paused, not connected, being opened again
        after a change, or another one has its bot.
        """
        task = self._channels.get(channel)
        if task is None:
            may_exist = channel in self._existing or not self.is_loaded
            return WebhookResponse(status=503) if may_exist else None
        if task.connection is None or task.is_paused or self._claims.rival(channel) is not None:
            return WebhookResponse(status=503)
        return await task.connection.receiver.receive(request, self._get_acceptor().accept(task.context))

    def installations(self, channel: str) -> ChannelInstallations | None:
        """Return the workspaces that installed a channel's app; None if it cannot be installed."""
        task = self._channels.get(channel)
        return None if task is None or task.connection is None else task.connection.installations

    def list_installable(self, kind: str) -> list[str]:
        """Return the open channels of a platform whose apps people can install."""
        return [
            name
            for name, task in self._channels.items()
            if task.plugin.name == kind and self.installations(name) is not None
        ]

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Reply to a button press or command so that only its sender sees it; errors are logged."""
        task = self._channels.get(to.address.channel)
        if task is None or task.connection is None:
            return
        try:
            await task.connection.sender.reply_privately(to, text)
        except ChannelError as error:
            log.warning("channel.reply_failed", **channel_identity(task.record), error=str(error))

    async def reply_confidentially(self, to: Message | Command, text: str) -> None:
        """Reply to a person in a room so that only they can read it; raises ChannelError if that fails."""
        task = self._channels.get(to.address.channel)
        if task is None or task.connection is None:
            raise Unreachable("the channel is not open")
        await task.connection.sender.reply_confidentially(to, text)

    def has_reactions(self) -> bool:
        """Return whether any open channel shows status reactions."""
        return any(_shows_reactions(task) for task in self._channels.values())

    def has_single_reactions(self, channel: str) -> bool:
        """Return whether a message of a channel has one reaction of the bot."""
        task = self._channels.get(channel)
        return task is not None and task.plugin.emoji.is_single

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction) -> None:
        """Add a status reaction to a message if its channel shows them; errors are logged."""
        task = self._channels.get(address.channel)
        if task is None or task.connection is None or not _shows_reactions(task):
            return
        try:
            async with asyncio.timeout(REACTION_TIMEOUT):
                await task.connection.sender.react(address, platform_id, reaction)
        except (ChannelError, TimeoutError) as error:
            log.debug("channel.react_failed", **channel_identity(task.record), error=str(error))

    def _should_receive(self, channel: ChannelTask) -> bool:
        """Return whether this process should receive a channel's updates."""
        return self._may_receive and not channel.is_paused

    def _interruption_reason(self, channel: ChannelTask) -> str:
        """Return why a channel that should receive in this process does not, or an empty text."""
        health = channel.health
        if not self._should_receive(channel) or health.is_open:
            return "no updates arrive" if self._is_stalled(channel) else ""
        return f"not receiving: {health.reason or 'connecting'}"

    def _is_stalled(self, channel: ChannelTask) -> bool:
        return self._should_receive(channel) and channel.health.is_stalled

    def count_by_state(self) -> dict[str, int]:
        """Count the channels by their state in this process."""
        counted = dict.fromkeys(CHANNEL_STATES, 0)
        for task in self._channels.values():
            counted[self._state_of(task)] += 1
        counted["trouble"] += len(self._unopened)
        return counted

    def status(self, channel: str) -> tuple[str, str]:
        """Return a channel's state in this process, and why it does not receive or an empty text."""
        task = self._channels.get(channel)
        if channel in self._unopened:
            return "trouble", self._unopened[channel]
        if task is None:
            return "closed", "this process has not opened the channel"
        rival = self._rival_reason(channel)
        refusal = next(iter(task.refusals.values()), "") or (rival and f"{rival}: {SHARED_BOT_REMEDY}")
        return self._state_of(task), task.error or refusal or self._interruption_reason(task)

    def _rival_reason(self, channel: str) -> str:
        """Return why a channel does not receive if another one does for its bot, or an empty text."""
        task, rival = self._channels.get(channel), self._claims.rival(channel)
        if task is None or rival is None:
            return ""
        other = self._channels.get(rival)
        is_own = other is not None and other.record.account == task.record.account
        name = f"channel {other.record.name!r}" if other and is_own else "a channel of this gateway"
        refusal = self._claims.why_yielded(channel)
        return f"{name} {SHARED_BOT} {f'this one cannot: {refusal}' if refusal else 'it was created first'}"

    def _state_of(self, channel: ChannelTask) -> str:
        if self._is_stalled(channel):
            return "stalled"
        if channel.error or channel.refusals or self._claims.rival(channel.record.id) is not None:
            return "trouble"
        if channel.is_paused:
            return "paused"
        if channel.health.is_receiving:
            return "receiving"
        if channel.health.on_standby:
            return "standby"
        return "closed" if channel.connection is None else "open"

    def starting(self) -> list[str]:
        """Return the channels without errors that should receive in this process and do not yet."""
        if self._may_receive and not self.is_loaded:
            return ["the channels are not loaded from the database yet"]
        return [
            task.record.name
            for task in self._channels.values()
            if self._should_receive(task) and not (task.health.has_received or task.error)
        ]


def _shows_reactions(channel: ChannelTask) -> bool:
    return channel.settings.reactions and ChannelFeature.REACT in channel.plugin.features
