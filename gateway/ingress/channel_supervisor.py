"""The switchboard: every configured channel at work, each in a supervised task, changed without a restart."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from channels import registry
from channels.errors import ChannelError
from channels.message import Address, ButtonPress, Command, StatusReaction
from channels.port import (
    ChannelFeature,
    ChannelLimits,
    ChannelPlugin,
    CheckResult,
    Connection,
    WebhookRequest,
    WebhookResponse,
)
from channels.settings import ChannelSettings
from delivery.broker.port import Leases
from delivery.chat.rate_limit import RateLimiter
from delivery.chat.shared_rate_limit import SharedRateLimiter, TokenBucketStore
from delivery.chat.sink import SEND_SECONDS, ConnectedBot
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.deliveries.attempt import AmbiguityPolicy
from delivery.deliveries.port import Delivery
from delivery.errors import DeliveryError, LeaseBusy
from gateway.ingress.channel_health import ReceiverHealth
from gateway.ingress.channel_state import SqlChannelState
from gateway.ingress.receive import ChannelContext, UpdateAcceptor
from gateway.records.records import Records
from gateway.store.accounts import records
from gateway.store.accounts.records import Record

log = structlog.get_logger(__name__)

UNKNOWN_LIMITS = ChannelLimits(text=2000)
"""What a channel of an unknown kind is planned for."""

RETRY_DELAYS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
OPERATOR_RETRY_DELAYS = (2.0, 5.0, 10.0, 30.0, 60.0)
STANDBY_POLL_SECONDS = 1.0
REACTION_TIMEOUT = 5.0
PROBE_TIMEOUT = 20.0


@dataclass(slots=True)
class ChannelTask:
    """One channel at work in this process."""

    record: Record
    plugin: ChannelPlugin
    context: ChannelContext
    settings: ChannelSettings
    rate_limiter: RateLimiter
    health: ReceiverHealth
    connection: Connection | None = None
    error: str = ""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    receiving: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None


class ChannelSupervisor:
    """Opens channels, keeps them open, and finds them for replies. `receives`: this process polls too.

    With `allowances` other processes speak for the same bots, and share their rates.
    """

    def __init__(
        self,
        *,
        database: Database,
        records: Records,
        get_acceptor: Callable[[], UpdateAcceptor],
        leases: Leases,
        may_receive: bool,
        public_url: str | None,
        token_buckets: TokenBucketStore | None = None,
        lease_ttl: float = 6.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._records = records
        self._get_acceptor = get_acceptor
        self._leases = leases
        self._may_receive = may_receive
        self._public_url = public_url
        self._token_buckets = token_buckets
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._channels: dict[str, ChannelTask] = {}
        self._wake_event = asyncio.Event()
        self._draining = asyncio.Event()
        self._is_loaded = False

    async def drain_on_stop(self, stop: asyncio.Event) -> None:
        """Let the lines receive until stopped, and end when none does; what is open still speaks."""
        await stop.wait()
        self._draining.set()
        for line in list(self._channels.values()):
            async with line.receiving:
                log.debug("channel.drained", channel=line.record.name)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the lines open as the records say, until stopped."""
        try:
            while not stop.is_set():
                self._wake_event.clear()
                try:
                    await self.reconcile()
                except DatabaseUnavailable as error:
                    log.warning("channels.database_unavailable", error=str(error))
                await _wait_for_any(stop, self._wake_event, timeout=30.0)
        finally:
            await asyncio.gather(*(self._close(line) for line in list(self._channels.values())))

    async def wake(self, _account: str, _record: str) -> None:
        """A channel record was made, changed or removed: look at once."""
        self._wake_event.set()

    async def reconcile(self) -> None:
        """Open, reopen and close lines so that they are what the records say."""
        async with self._database.read() as connection:
            wanted = {record.id: record for record in await records.list_all(connection, "channel")}
        for line in list(self._channels.values()):
            new = wanted.get(line.record.id)
            if new is None or new.updated_at != line.record.updated_at:
                await self._close(line)
        for record in wanted.values():
            if record.id not in self._channels:
                self._open(record)
        self._is_loaded = True

    def _open(self, record: Record) -> None:
        config = self._records.channel_config(record)
        try:
            plugin = registry.plugin(config.kind)
        except (registry.UnknownChannelKind, registry.BrokenChannelPlugin) as error:
            log.warning("channel.not_installed", channel=record.name, error=str(error))
            return
        settings = self._settings(plugin, record)
        line = ChannelTask(
            record=record,
            plugin=plugin,
            context=ChannelContext.from_settings(
                record, agent=config.agent, settings=settings, bot_user_id=plugin.account(settings)
            ),
            settings=settings,
            rate_limiter=self._rate_limiter(plugin, settings),
            health=ReceiverHealth(self._clock),
        )
        self._channels[record.id] = line
        line.task = asyncio.create_task(self._supervise(line))

    def _rate_limiter(self, plugin: ChannelPlugin, settings: ChannelSettings) -> RateLimiter:
        limits = _limits(plugin, settings)

        def is_group(destination: str) -> bool:
            return limits.is_group(Address.room_of(destination))

        if self._token_buckets is None:
            return RateLimiter(limits, is_group=is_group)
        name = f"{plugin.name}:{plugin.account(settings)}"
        return SharedRateLimiter(limits, name=name, store=self._token_buckets, is_group=is_group)

    async def probe(self, record: Record) -> tuple[CheckResult, ...]:
        """Ask a channel's platform whether its settings are right, open or not; raises ChannelError."""
        plugin = registry.plugin(self._records.channel_config(record).kind)
        async with asyncio.timeout(PROBE_TIMEOUT):
            return await plugin.probe(self._settings(plugin, record))

    def _settings(self, plugin: ChannelPlugin, record: Record) -> Any:
        """Return a channel's settings; a webhook channel is told where the platform reaches it."""
        settings: dict[str, Any] = dict(self._records.channel_config(record).settings)
        wants = "webhook_url" in plugin.settings.model_fields and not settings.get("webhook_url")
        if wants and self._public_url and settings.get("mode") == "webhook":
            settings["webhook_url"] = f"{self._public_url.rstrip('/')}/channels/{record.id}/inbound"
        return plugin.settings.model_validate(settings)

    async def _close(self, channel: ChannelTask) -> None:
        self._channels.pop(channel.record.id, None)
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_SECONDS):
                await channel.rate_limiter.drain()
        channel.stop.set()
        if channel.task is not None:
            channel.task.cancel()
            with suppress(asyncio.CancelledError):
                await channel.task

    async def _supervise(self, channel: ChannelTask) -> None:
        tries = 0
        while not channel.stop.is_set():
            try:
                async with channel.plugin.open(
                    channel.record.id, channel.settings, SqlChannelState(self._database, channel.record.id)
                ) as connection:
                    channel.connection, channel.error, tries = connection, "", 0
                    await self._receive(channel, connection)
            except ChannelError as error:
                channel.error = str(error)
                wait = _retry_delay(
                    tries, OPERATOR_RETRY_DELAYS if error.remedy == "operator" else RETRY_DELAYS
                )
                log.warning(
                    "channel.disconnected", channel=channel.record.name, error=str(error), retry_in=wait
                )
            except Exception as error:  # the outermost loop of a channel: the others must go on
                channel.error = str(error)
                wait = _retry_delay(tries, RETRY_DELAYS)
                log.exception("channel.failed", channel=channel.record.name)
            else:
                wait = 0.0
            channel.connection = None
            channel.health.disconnected(channel.error)
            tries += 1
            await _wait_for_any(channel.stop, timeout=wait)

    async def _receive(self, channel: ChannelTask, connection: Connection) -> None:
        """Receive whenever the bot's connection lease is ours; without it, stand by and only send."""
        while self._may_receive and not (self._draining.is_set() or channel.stop.is_set()):
            async with channel.receiving:
                received = await self._receive_once(channel, connection)
            if not received:
                await _wait_for_any(channel.stop, self._draining, timeout=STANDBY_POLL_SECONDS)
        await channel.stop.wait()

    async def _receive_once(self, channel: ChannelTask, connection: Connection) -> bool:
        name = f"a:{channel.plugin.name}:{channel.plugin.account(channel.settings)}"
        try:
            async with self._leases.acquire(name, ttl=self._lease_ttl) as lease:
                channel.health.set_standby(on_standby=False)
                await self._receive_leased(channel, connection, lease.wait_lost())
        except (LeaseBusy, DeliveryError) as error:
            channel.health.set_standby(on_standby=isinstance(error, LeaseBusy), reason=str(error))
            return False
        return True

    async def _receive_leased(self, channel: ChannelTask, connection: Connection, lost: Any) -> None:
        accept = self._get_acceptor().accept(channel.context)
        running = asyncio.create_task(connection.receiver.run(accept, receiving=channel.health))
        losing, stopping = (
            asyncio.ensure_future(lost),
            asyncio.create_task(_wait_for_any(channel.stop, self._draining)),
        )
        try:
            await asyncio.wait({running, losing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            channel.health.disconnected()
            for task in (running, losing, stopping):
                task.cancel()
            await asyncio.gather(running, losing, stopping, return_exceptions=True)

    def get_bot(self, channel: str) -> ConnectedBot | None:
        """Return a connected bot, for the chat sink."""
        line = self._channels.get(channel)
        if line is None or line.connection is None:
            return None
        return ConnectedBot(
            sender=line.connection.sender,
            features=line.plugin.features,
            rate_limiter=line.rate_limiter,
            limits=line.plugin.limits,
            account=line.record.account,
            policy=AmbiguityPolicy(line.settings.ambiguous),
        )

    def can_resolve(self, delivery: Delivery) -> bool:
        """Say whether the platform can tell what became of a message that may have arrived."""
        line = self._channels.get(Address.decode(delivery.target).channel)
        return line is not None and bool(
            {ChannelFeature.FIND, ChannelFeature.IDEMPOTENT_SEND} & line.plugin.features
        )

    def pause_bot(self, destination: str, seconds: float) -> None:
        """A platform wants a whole bot to pause, as perhaps another replica was told."""
        line = self._channels.get(json.loads(destination)[0])
        if line is not None:
            line.rate_limiter.pause(seconds)

    def policy(self, delivery: Delivery) -> AmbiguityPolicy:
        """Return what a delivery's channel wants done when it may have arrived."""
        line = self._channels.get(Address.decode(delivery.target).channel)
        return AmbiguityPolicy(line.settings.ambiguous) if line else AmbiguityPolicy.AT_LEAST_ONCE

    def limits(self, channel: str) -> ChannelLimits:
        """Return a channel's limits, for planning."""
        line = self._channels.get(channel)
        return line.plugin.limits if line else UNKNOWN_LIMITS

    def typing_seconds(self, channel: str) -> float:
        """Return how long a typing sign lasts there."""
        return self.limits(channel).typing_seconds

    async def receive(self, channel: str, request: WebhookRequest) -> WebhookResponse | None:
        """Give a posted request to a channel's inbox; None when there is no such channel."""
        line = self._channels.get(channel)
        if line is None:
            return None
        if line.connection is None:
            return WebhookResponse(status=503)
        return await line.connection.receiver.receive(request, self._get_acceptor().accept(line.context))

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Tell who pressed a button what came of it; best effort, the decision stands anyhow."""
        line = self._channels.get(to.address.channel)
        if line is None or line.connection is None:
            return
        try:
            await line.connection.sender.reply_privately(to, text)
        except ChannelError as error:
            log.warning("channel.reply_failed", channel=line.record.name, error=str(error))

    def has_reactions(self) -> bool:
        """Say whether any channel here shows by reactions what became of a message."""
        return any(_shows_reactions(line) for line in self._channels.values())

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction) -> None:
        """Put a sign under a message where that is wanted; best effort, whatever the platform says of it."""
        line = self._channels.get(address.channel)
        if line is None or line.connection is None or not _shows_reactions(line):
            return
        try:
            async with asyncio.timeout(REACTION_TIMEOUT):
                await line.connection.sender.react(address, platform_id, reaction)
        except (ChannelError, TimeoutError) as error:
            log.debug("channel.react_failed", channel=line.record.name, error=str(error))

    def errors(self) -> dict[str, str]:
        """Return what is wrong with channels, by name."""
        told = {
            line.record.name: line.error or self._interruption_reason(line)
            for line in self._channels.values()
        }
        return {name: trouble for name, trouble in told.items() if trouble}

    def _interruption_reason(self, channel: ChannelTask) -> str:
        """Return why a channel that received here does not, for the moment."""
        listening = channel.health
        if not self._may_receive or listening.is_open or not listening.has_received:
            return ""
        return f"not receiving: {listening.reason or 'it begins'}"

    def not_receiving(self) -> dict[str, str]:
        """Return the channels that have not received for long where they should, with why."""
        return {
            line.record.name: line.health.reason or "no updates arrive"
            for line in self._channels.values()
            if self._may_receive and line.health.is_stalled
        }

    def count_by_state(self) -> dict[str, int]:
        """Count the channels by how they stand in this process."""
        counted = dict.fromkeys(("receiving", "standby", "trouble", "open", "closed"), 0)
        for line in self._channels.values():
            counted[_state_of(line)] += 1
        return counted

    def starting(self) -> list[str]:
        """Return the channels that should receive here and do not yet (those in trouble excepted)."""
        if self._may_receive and not self._is_loaded:
            return ["the channels that are not read from the database yet"]
        return [
            line.record.name
            for line in self._channels.values()
            if self._may_receive and not (line.health.has_received or line.error)
        ]


def _state_of(channel: ChannelTask) -> str:
    if channel.error:
        return "trouble"
    if channel.health.is_receiving:
        return "receiving"
    if channel.health.on_standby:
        return "standby"
    return "closed" if channel.connection is None else "open"


def _shows_reactions(channel: ChannelTask) -> bool:
    return channel.settings.reactions and ChannelFeature.REACT in channel.plugin.features


def _retry_delay(attempts: int, delays: Sequence[float]) -> float:
    return delays[min(attempts, len(delays) - 1)]


async def _wait_for_any(*events: asyncio.Event, timeout: float | None = None) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _limits(plugin: ChannelPlugin, settings: ChannelSettings) -> ChannelLimits:
    """Return the platform's limits, with the rate that the operator knows it takes from this bot."""
    if settings.sends_per_second is None:
        return plugin.limits
    return replace(plugin.limits, account_sends_per_second=settings.sends_per_second)
