"""Keep all connections of a bot to the gateway: one per shard, each with its stored session.

Discord assigns each server to one shard, and private conversations to the first. A bot begins with one shard.
When Discord closes it because the bot is in too many servers, Discord is asked how many it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog
from discord.http import Route

from channels.discord.api import Api
from channels.discord.payloads import Bot
from channels.discord.receive.event_handler import EventHandler
from channels.discord.receive.gateway import DiscordGateway, Event, HandleEvent, ShardingRequired, intents_of
from channels.discord.receive.gateway_sessions import GatewaySession, GatewaySessions
from channels.discord.settings import DiscordSettings
from channels.errors import ChannelError, RateLimited, Unauthorized
from channels.port import Accept, ReceiverStatus
from channels.receiving.status import BACKOFF_SECONDS, CombinedStatus, until_read

CLOSE_TIMEOUT_SECONDS = 0.5
MAX_SHARDS = 1000

MakeHandler = Callable[[int], EventHandler]
"""Return the handler of a shard's events, which remembers its rooms."""

BeforeEvent = Callable[[Event], Awaitable[None]]
"""Called before each event is handled."""

log = structlog.get_logger(__name__)


class Shards:
    """Connects a bot's shards again and again; the sessions outlive the process."""

    def __init__(
        self,
        api: Api,
        settings: DiscordSettings,
        sessions: GatewaySessions,
        *,
        bot: Bot,
        make_handler: MakeHandler,
        before: BeforeEvent,
    ) -> None:
        self._api = api
        self._settings = settings
        self._sessions = sessions
        self._bot = bot
        self._make_handler = make_handler
        self._before = before
        self._count = settings.shards

    async def run(self, accept: Accept, receiving: ReceiverStatus, stop: asyncio.Event) -> None:
        """Receive by all shards until cancelled; raises Unauthorized if only an operator can help."""
        while not stop.is_set():
            count = self._count or await until_read(self._sessions.shard_count, receiving) or 1
            try:
                await self._run_all(count, accept, receiving, stop)
            except ShardingRequired as error:
                log.warning("discord.sharding_required", error=str(error))
                receiving(False, str(error))  # noqa: FBT003 - the port's signature
                self._count = await self._larger_count(count)

    async def _run_all(
        self, count: int, accept: Accept, receiving: ReceiverStatus, stop: asyncio.Event
    ) -> None:
        status = CombinedStatus(count, receiving)
        shards = [self._shard(number, count) for number in range(count)]
        try:
            async with asyncio.TaskGroup() as tasks:
                for shard in shards:
                    tasks.create_task(shard.run(accept, status.of(shard.number), stop))
        except ExceptionGroup as group:
            raise _first_error(group) from None
        finally:
            await _close(shards)

    def _shard(self, number: int, count: int) -> Shard:
        fingerprint = f"{self._bot.id}/{intents_of(self._settings).value}/{count}"
        gateway = DiscordGateway(self._api, self._settings, shard=number, shards=count)
        handler = self._make_handler(number)
        return Shard(number, gateway, handler, self._sessions, fingerprint=fingerprint, before=self._before)

    async def _larger_count(self, count: int) -> int:
        """Return how many shards Discord recommends; raises Unauthorized if that is not more."""
        ask = self._api.bot.request(Route("GET", "/gateway/bot"))
        try:
            limits = await self._api.call(ask, name="gateway")
        except ChannelError as error:
            if error.remedy == "operator":
                raise
            await asyncio.sleep(BACKOFF_SECONDS[-1])
            return count  # refused once more, then asked once more
        recommended = limits.get("shards") if isinstance(limits, dict) else None
        if not isinstance(recommended, int) or not count < recommended <= MAX_SHARDS:
            raise Unauthorized(
                f"gateway: the bot is in too many servers for {count} connections (4011); set shards"
            )
        with suppress(Exception):  # a lost write only means that Discord is asked again
            await self._sessions.save_shard_count(recommended)
        return recommended


class Shard:
    """One shard: its connection, its event handler and its stored session."""

    def __init__(
        self,
        number: int,
        gateway: DiscordGateway,
        handler: EventHandler,
        sessions: GatewaySessions,
        *,
        fingerprint: str,
        before: BeforeEvent,
    ) -> None:
        self.number = number
        self._gateway = gateway
        self._handler = handler
        self._sessions = sessions
        self._fingerprint = fingerprint
        self._before = before

    async def run(self, accept: Accept, receiving: ReceiverStatus, stop: asyncio.Event) -> None:
        """Resume the stored session or begin one; connect again after each connection."""
        self._gateway.session = await until_read(self._restore, receiving)

        async def handle(event: Event) -> bool:
            await self._before(event)
            return await self._handler.handle(event, accept)

        reading = asyncio.create_task(self._handler.read_unread_rooms(accept))
        try:
            await self._run_connections(handle, receiving, stop)
        finally:
            reading.cancel()

    async def _restore(self) -> GatewaySession:
        session = await self._sessions.load(self.number, self._fingerprint)
        if session.can_resume:
            await self._handler.resume(session.id)
        return session

    async def _run_connections(
        self, handle: HandleEvent, receiving: ReceiverStatus, stop: asyncio.Event
    ) -> None:
        failures = 0
        while not stop.is_set():
            wait, reason = 0.0, "Discord closed the connection"
            try:
                is_connected = await self._gateway.run(handle, receiving, self._save)
                failures = 0 if is_connected else failures + 1
            except ChannelError as error:
                if error.remedy == "operator" or isinstance(error, ShardingRequired):
                    raise
                log.warning("discord.receiving_interrupted", error=str(error))
                failures, reason = failures + 1, str(error)
                wait = error.retry_after if isinstance(error, RateLimited) else 0.0
            receiving(False, reason)  # noqa: FBT003 - the port's signature
            await asyncio.sleep(max(wait, BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]))

    async def _save(self, session: GatewaySession) -> None:
        await self._sessions.save(self.number, session, self._fingerprint)

    async def close(self) -> None:
        """Store what was reached."""
        await self._handler.close()
        await self._sessions.save(self.number, self._gateway.session, self._fingerprint, at_once=True)


def _first_error(group: ExceptionGroup[Exception]) -> Exception:
    """Return the error of a group of tasks; one that only an operator can fix comes first."""
    return min(group.exceptions, key=lambda error: not isinstance(error, Unauthorized))


async def _close(shards: Sequence[Shard]) -> None:
    """Store all markers and sessions, if that takes no longer than CLOSE_TIMEOUT_SECONDS."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
            await asyncio.gather(*(shard.close() for shard in shards))
