"""The channel supervisor: one task per configured channel, reconciled with the records without a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import structlog

from channels.errors import ChannelError, NotPermitted, Unauthorized
from channels.message import Address
from channels.port import (
    ChannelFeature,
    ChannelInstallations,
    ChannelLimits,
    ChannelPlugin,
    CheckResult,
    Connection,
)
from channels.settings import ChannelSettings
from channels.supervision import open_channel
from delivery.background import log_errors, wait_for_any
from delivery.broker.port import Leases
from delivery.chat.rate_limit import RateLimiter
from delivery.chat.shared_rate_limit import SharedRateLimiter, TokenBucketStore
from delivery.chat.sink import SEND_SECONDS
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.deliveries import ordering
from delivery.errors import DeliveryError, LeaseBusy
from gateway.infra.replica_shares import RECEIVING, ReplicaShares
from gateway.infra.replica_signal import ReplicaSignal
from gateway.ingress.bot_claims import BotAcceptor, BotClaims
from gateway.ingress.channel_context import ChannelContext, UpdateAcceptor, channel_identity
from gateway.ingress.channel_health import OPERATOR_RETRY_DELAYS, ChannelRetries, ReceiverHealth
from gateway.ingress.channel_state import SqlChannelState
from gateway.ingress.open_channels import SHARED_BOT_REMEDY, ChannelTask, OpenChannels
from gateway.records.records import Records
from gateway.records.stored_channel import StoredChannel, UnreadableChannel, read_channel
from gateway.store.accounts import records
from gateway.store.accounts.records import Record

log = structlog.get_logger(__name__)

BROKER_RETRY_SECONDS = 1.0
DATABASE_RETRY_SECONDS = 1.0
RECONCILE_SECONDS = 30.0
PROBE_TIMEOUT = 20.0


class ChannelSupervisor(OpenChannels):
    """Opens channels and keeps them open. `may_receive`: this process also receives updates.

    With `token_buckets` the rates of a bot are shared with the other processes that send for it. With
    `replica`, a name of this process, the bots are shared among the replicas that receive. With `changes`
    all replicas learn at once that a record has changed.
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
        replica: str | None = None,
        changes: ReplicaSignal | None = None,
        lease_ttl: float = 6.0,
        operator_retry_delays: Sequence[float] = OPERATOR_RETRY_DELAYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        claims = BotClaims()
        acceptor = BotAcceptor(get_acceptor, database, claims)
        super().__init__(get_acceptor=lambda: acceptor, may_receive=may_receive, claims=claims)
        self._database = database
        self._records = records
        self._leases = leases
        self._public_url = public_url
        self._token_buckets = token_buckets
        self._shares = (
            ReplicaShares(leases, kind=RECEIVING, replica=replica, ttl=lease_ttl)
            if may_receive and replica is not None
            else None
        )
        self._changes = changes
        self._lease_ttl = lease_ttl
        self._operator_retry_delays = operator_retry_delays
        self._clock = clock
        self._wake_event = asyncio.Event()
        self._draining = asyncio.Event()

    async def drain_on_stop(self, stop: asyncio.Event) -> None:
        """Wait for `stop`, then end all receiving; open channels can still send."""
        await stop.wait()
        self._draining.set()
        for task in list(self._channels.values()):
            async with task.receiving:
                log.debug("channel.drained", **channel_identity(task.record))

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the channels reconciled with the records until stopped, then close them."""
        sharing = asyncio.create_task(self._shares.run(self._draining)) if self._shares else None
        learning = asyncio.create_task(self._learn_of_changes(stop))
        try:
            while not stop.is_set():
                self._wake_event.clear()
                pause = RECONCILE_SECONDS
                with log_errors("channels.reconcile"):
                    try:
                        await self.reconcile()
                    except DatabaseUnavailable as error:
                        log.warning("channels.database_unavailable", error=error)
                        pause = DATABASE_RETRY_SECONDS
                await wait_for_any(stop, self._wake_event, timeout=pause)
        finally:
            await asyncio.gather(*(self._close(task) for task in list(self._channels.values())))
            self._draining.set()
            await learning
            if sharing is not None:
                await sharing

    async def _learn_of_changes(self, stop: asyncio.Event) -> None:
        if self._changes is not None:
            await self._changes.run(stop, self._wake_event.set)

    async def wake(self, _account: str, _record: str) -> None:
        """Reconcile at once in all replicas, because a channel record was created, changed or deleted."""
        self._wake_event.set()
        if self._changes is not None:
            await self._changes.send()

    async def reconcile(self) -> None:
        """Open, reopen and close channels so that they match the records."""
        async with self._database.read() as connection:
            wanted = {record.id: record for record in await records.list_all(connection, "channel")}
        self._existing = wanted
        for task in list(self._channels.values()):
            new = wanted.get(task.record.id)
            if new is None or new.updated_at != task.record.updated_at:
                await self._close(task)
        self._claims.forget_others(wanted)
        self._unopened = {one: why for one, why in self._unopened.items() if one in wanted}
        for record in wanted.values():
            if record.id not in self._channels:
                self._try_open(record)
        self.is_loaded = True

    def _try_open(self, record: Record) -> None:
        """Open a channel, or note why it cannot be opened: the other channels must continue."""
        earlier = self._unopened.pop(record.id, None)
        try:
            self._open(record)
        except UnreadableChannel as error:
            self._claims.release(record.id)
            self._unopened[record.id] = str(error)
            if earlier != str(error):
                log.warning("channel.not_opened", **channel_identity(record), error=str(error))
        except Exception as error:  # a plugin may raise anything
            self._claims.release(record.id)
            self._unopened[record.id] = str(error) or type(error).__name__
            log.exception("channel.not_opened", **channel_identity(record))

    def _open(self, record: Record) -> None:
        stored = self._read(record)
        config, plugin, settings = stored.config, stored.plugin, stored.settings
        task = ChannelTask(
            record=record,
            plugin=plugin,
            context=ChannelContext.from_settings(
                record,
                agent=config.agent,
                settings=settings,
                bot_user_id=plugin.account(settings),
                can_edit=ChannelFeature.EDIT in plugin.features,
            ),
            settings=settings,
            rate_limiter=self._rate_limiter(plugin, settings),
            health=ReceiverHealth(self._clock),
            bot=f"{plugin.name}:{plugin.account(settings)}",
            is_paused=config.paused,
        )
        self._channels[record.id] = task
        self._claims.end_yielding(record.id)
        self._claim(task)
        task.task = asyncio.create_task(self._supervise(task))

    def _claim(self, channel: ChannelTask) -> None:
        """Claim a channel's bot; a claim that it had before it was opened again goes on."""
        if channel.is_paused:
            self._claims.note(channel.record, channel.bot)
            self._claims.release(channel.record.id)
        else:
            self._claims.claim(channel.record, channel.bot)

    def _rate_limiter(self, plugin: ChannelPlugin, settings: ChannelSettings) -> RateLimiter:
        limits = _limits(plugin, settings)

        def is_group(destination: str) -> bool:
            return limits.is_group(Address.room_of(destination))

        def account_of(destination: str) -> str:
            return limits.account_of(Address.room_of(destination))

        rules: dict[str, Any] = {"is_group": is_group, "account_of": account_of}
        if self._token_buckets is None:
            return RateLimiter(limits, **rules)
        name = f"{plugin.name}:{plugin.account(settings)}"
        return SharedRateLimiter(limits, name=name, store=self._token_buckets, **rules)

    async def probe(self, record: Record) -> tuple[CheckResult, ...]:
        """Check a channel's settings with its platform, whether it is open or not.

        Raises ChannelError, UnreadableChannel.
        """
        stored = self._read(record)
        async with asyncio.timeout(PROBE_TIMEOUT):
            found = await stored.plugin.probe(stored.settings, self._records.guard_of(record))
        rival = self._rival_reason(record.id)
        if not rival:
            return found
        return *found, CheckResult(subject="receiving", ok=False, detail=rival, remedy=SHARED_BOT_REMEDY)

    def _read(self, record: Record) -> StoredChannel:
        return read_channel(self._records, record, public_url=self._public_url)

    @asynccontextmanager
    async def open_installations(self, record: Record) -> AsyncIterator[ChannelInstallations | None]:
        """Yield an app's installations, also where it is not open; raises ChannelError, UnreadableChannel."""
        live, stored = self.installations(record.id), self._read(record)
        if live is not None or not stored.plugin.is_installable(stored.settings):
            yield live
            return
        async with self._connect(record, stored.plugin, stored.settings) as connection:
            yield connection.installations

    def _connect(
        self, record: Record, plugin: ChannelPlugin, settings: ChannelSettings
    ) -> AbstractAsyncContextManager[Connection]:
        state = SqlChannelState(self._database, record.id, self._records.vault)
        return open_channel(plugin, record.id, settings, state, self._records.guard_of(record))

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
        """Open the channel again and again; while its receiver has failed, messages can still be sent."""
        retries = ChannelRetries(channel.record, operator_delays=self._operator_retry_delays)
        while not channel.stop.is_set():
            try:
                async with self._connect(channel.record, channel.plugin, channel.settings) as connection:
                    self._set_connected(channel, connection)
                    await self._retry_waiting(channel.record)
                    try:
                        await self._receive(channel, connection)
                    except Exception as error:  # noqa: BLE001 - the outermost loop of a channel
                        if isinstance(error, Unauthorized | NotPermitted):
                            self._claims.yield_to_others(channel.record.id, str(error))
                        await self._wait_after(error, channel, retries)
                    finally:
                        channel.connection = None
            except Exception as error:  # noqa: BLE001 - the others must go on
                channel.connection = None
                self._release_after(error, channel)
                await self._wait_after(error, channel, retries)

    def _set_connected(self, channel: ChannelTask, connection: Connection) -> None:
        channel.connection, channel.error, channel.is_verified = connection, "", True
        if connection.account:
            channel.bot = f"{channel.plugin.name}:{connection.account}"
        self._claim(channel)

    def _release_after(self, error: Exception, channel: ChannelTask) -> None:
        """End a channel's claim if it never had a connection, or cannot have one until an operator acts."""
        is_short = isinstance(error, ChannelError) and error.remedy == "retry"
        if not (is_short and channel.is_verified):
            self._claims.release(channel.record.id)

    async def _retry_waiting(self, record: Record) -> None:
        """Attempt at once what failed with earlier settings of the channel, such as another token."""
        with log_errors("channels.retry_waiting"):
            async with self._database.begin() as connection:
                changed = record.updated_at
                found = await ordering.retry_channel(connection, record.account, record.id, changed)
            for destination in found:
                self.wake_destination(destination, record.account)

    async def _wait_after(self, error: Exception, channel: ChannelTask, retries: ChannelRetries) -> None:
        channel.error = str(error)
        channel.health.disconnected(channel.error)
        wait = retries.record(error, received_seconds=channel.health.take_received_seconds())
        await wait_for_any(channel.stop, timeout=wait)

    async def _receive(self, channel: ChannelTask, connection: Connection) -> None:
        """Receive while the bot is this channel's and this process holds its lease; else only send."""
        while self._should_receive(channel) and not self._is_ending(channel):
            try:
                await self._wait_for_bot(channel)
                changed = await self._wait_for_share(channel)
                if self._is_ending(channel):
                    break
                async with channel.receiving:
                    await self._receive_once(channel, connection, changed)
            except LeaseBusy as error:
                channel.health.set_standby(on_standby=True, reason=str(error))
                with self._leases.watch(_lease_name(channel)) as freed:
                    await wait_for_any(channel.stop, self._draining, freed)
            except DeliveryError as error:
                channel.health.set_standby(on_standby=False, reason=str(error))
                await wait_for_any(channel.stop, self._draining, timeout=BROKER_RETRY_SECONDS)
        await channel.stop.wait()

    def _is_ending(self, channel: ChannelTask) -> bool:
        return self._draining.is_set() or channel.stop.is_set()

    async def _wait_for_bot(self, channel: ChannelTask) -> None:
        """Stand by while another channel receives for the bot."""
        reason = self._rival_reason(channel.record.id)
        if reason:
            log.warning("channel.refused", **channel_identity(channel.record), error=reason)
            channel.health.set_standby(on_standby=True, reason=reason)
        while not self._is_ending(channel):
            changed = self._claims.next_change()
            if self._claims.rival(channel.record.id) is None:
                return
            await wait_for_any(channel.stop, self._draining, changed)

    async def _wait_for_share(self, channel: ChannelTask) -> asyncio.Event | None:
        """Stand by while the bot belongs to another replica, unless that one leaves it alone for a while.

        Returns the event of the next change of the shares; None if they are not shared.
        """
        if self._shares is None:
            return None
        bot = _lease_name(channel)
        while True:
            changed = self._shares.next_change()
            if self._shares.owns(bot) or self._is_ending(channel):
                return changed
            channel.health.set_standby(on_standby=True, reason="the bot belongs to another replica")
            with self._leases.watch(bot) as freed:
                await wait_for_any(channel.stop, self._draining, changed, freed)
            await wait_for_any(channel.stop, self._draining, changed, timeout=self._lease_ttl)
            if not (changed.is_set() or await self._leases.is_held(bot)):
                return changed

    async def _receive_once(
        self, channel: ChannelTask, connection: Connection, changed: asyncio.Event | None
    ) -> None:
        """Receive until the lease is lost, the bot is another's or the channel stops; may raise LeaseBusy."""
        async with self._leases.acquire(_lease_name(channel), ttl=self._lease_ttl) as lease:
            channel.health.set_standby(on_standby=False)
            endings: list[Awaitable[object]] = [
                lease.wait_lost(),
                self._claims.wait_for_rival(channel.record.id),
            ]
            if self._shares is not None and changed is not None:
                endings.append(self._shares.wait_to_hand_over(_lease_name(channel), changed))
            await self._receive_leased(channel, connection, endings)

    async def _receive_leased(
        self, channel: ChannelTask, connection: Connection, endings: Sequence[Awaitable[object]]
    ) -> None:
        accept = self._get_acceptor().accept(channel.context)
        running = asyncio.create_task(connection.receiver.run(accept, receiving=channel.health))
        stopping = wait_for_any(channel.stop, self._draining)
        waiting = [running, *(asyncio.ensure_future(ending) for ending in (*endings, stopping))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            channel.health.disconnected()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


def _lease_name(channel: ChannelTask) -> str:
    return f"a:{channel.bot}"


def _limits(plugin: ChannelPlugin, settings: ChannelSettings) -> ChannelLimits:
    """Return the platform's limits, with the rate that the operator configured for this bot."""
    if settings.sends_per_second is None:
        return plugin.limits
    return replace(plugin.limits, account_sends_per_second=settings.sends_per_second)
