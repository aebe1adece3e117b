"""Connect to Discord's gateway with discord.py: hello, identify or resume, heartbeats, events in order.

The library moves the sequence number when it reads an event. Here it moves after the event was stored, so
Discord sends again whatever was not stored when a connection ends. The library's caches are not used: events
are handled as Discord sends them. A contract test holds the names of the library's private parts.
"""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, ClassVar

import aiohttp
import discord
import structlog
from discord import utils
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from yarl import URL

from channels.discord.api import Api
from channels.discord.receive.gateway_sessions import GatewaySession
from channels.discord.rest import CLOSE_SECONDS, CONNECT_TIMEOUT_SECONDS, MAX_FRAME_BYTES
from channels.discord.settings import DiscordSettings
from channels.errors import Ambiguous, ChannelError, RateLimited, Unauthorized, Unreachable
from channels.inbox.calls import connection_error
from channels.port import ReceiverStatus
from channels.receiving.session_pace import pace_for
from channels.receiving.status import BACKOFF_SECONDS
from egress.policy import refusal
from egress.urls import origin_of

Event = Mapping[str, Any]
HandleEvent = Callable[[Event], Awaitable[bool]]
"""Handle an event; False if it could not be stored and must be handled again."""

SaveSession = Callable[[GatewaySession], Awaitable[None]]
"""Store a session after an event was handled; never raises."""

HELLO_TIMEOUT_SECONDS = 20.0
HTTPS_PORT = 443
RESUMABLE_CLOSE = 4000
"""The close code; 1000 or 1001 would end the session."""

REIDENTIFY_SECONDS = (1.0, 5.0)
"""Bounds of the random wait before an invalid session is replaced, as Discord asks."""

SILENT_INTERVALS, MIN_SILENCE_SECONDS = 1.5, 1.0
"""How long a connection may be silent: in heartbeat intervals, and at least in seconds."""

RATE_LIMITED_CLOSE, RATE_LIMITED_SECONDS = 4008, 2.0
"""The close code after too many frames, and how long the next connection waits at least."""

SHARDING_REQUIRED_CLOSE = 4011
SESSION_ENDING_CLOSES = frozenset({4003, 4007, 4009})
_FATAL_CLOSES = {
    4004: "Discord refuses the token",
    4010: "Discord refuses the shard",
    4012: "Discord refuses the gateway version",
    4013: "Discord refuses the intents",
    4014: "the message content intent is not granted: Developer Portal, Bot, Message Content Intent"
    " (or message_content = false)",
}

log = structlog.get_logger(__name__)


class ShardingRequired(ChannelError):
    """The bot is in too many servers for so few connections."""


class BoundedDecompressor:
    """Inflates frames of at most MAX_FRAME_BYTES; the library's has no bound."""

    COMPRESSION_TYPE = "zlib-stream"

    def __init__(self) -> None:
        self._stream = zlib.decompressobj()
        self._buffer = bytearray()

    def decompress(self, data: bytes, /) -> str | None:
        """Return a complete frame, or None until it is complete; raises ValueError above the bound."""
        self._buffer.extend(data)
        if len(self._buffer) > MAX_FRAME_BYTES:
            raise ValueError("the frame is too long")
        if not data.endswith(b"\x00\x00\xff\xff"):
            return None
        frame, self._buffer = bytes(self._buffer), bytearray()
        text = self._stream.decompress(frame, MAX_FRAME_BYTES)
        if self._stream.unconsumed_tail:
            raise ValueError("the frame is too long")
        return text.decode()


class GatewaySocket(DiscordWebSocket):
    """A connection of one shard that commits each event before its sequence number moves."""

    shard: ClassVar[DiscordGateway]

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(socket, loop=loop)
        self.shard.socket = self
        requested = utils._ActiveDecompressionContext.COMPRESSION_TYPE  # noqa: SLF001 - zstd if it is installed
        if requested == BoundedDecompressor.COMPRESSION_TYPE:
            self._decompressor = BoundedDecompressor()

    async def received_message(self, msg: Any, /) -> None:
        """Commit an event, then let the library handle the frame; malformed frames are skipped."""
        text = self._decompressor.decompress(msg) if isinstance(msg, bytes) else str(msg)
        frame = _parse_frame(text) if text is not None else None
        if text is None or frame is None:
            return
        if frame.get("op") == self.DISPATCH:
            await self._commit(frame, text)
        elif frame.get("op") != self.HELLO:
            await super().received_message(text)
        elif self._keep_alive is None:
            self._max_heartbeat_timeout = _silence_seconds(frame)
            await super().received_message(text)

    async def _commit(self, event: Event, text: str) -> None:
        if event.get("t") == "READY" and isinstance(event.get("d"), dict):
            self.session_id = str(event["d"].get("session_id") or "")
        await self.shard.commit({**event, "session": self.session_id or ""})
        before = self.sequence
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # a malformed event is committed too
            await super().received_message(text)
        if not isinstance(self.sequence, int) or isinstance(self.sequence, bool):
            self.sequence = before
        await self.shard.on_committed(self)

    def show_alive(self) -> None:
        """Keep the connection while an event waits to be stored: no frames are read until then."""
        if self._keep_alive is not None:
            self._keep_alive.tick()

    @property
    def has_hello(self) -> bool:
        """Whether Discord has sent its hello, so that heartbeats are sent."""
        return self._keep_alive is not None


class DiscordGateway:
    """Connects one shard of a bot to the gateway again and again; the session outlives a connection."""

    def __init__(
        self,
        api: Api,
        settings: DiscordSettings,
        *,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self._settings = settings
        self._shard, self._shards = shard, shards
        self._pace = pace_for(settings)
        self._client = _client(api, settings, shard, shards)
        own = {"shard": self, "DEFAULT_GATEWAY": URL(settings.gateway_url)}
        self._socket_type: type[GatewaySocket] = type("ShardSocket", (GatewaySocket,), own)
        self._handle: HandleEvent = _refuse
        self._save: SaveSession = _forget
        self._receiving: ReceiverStatus = _ignore
        self.session = GatewaySession()
        self.socket: GatewaySocket | None = None
        self.is_receiving = False

    async def run(
        self, handle: HandleEvent, receiving: ReceiverStatus, save: SaveSession | None = None
    ) -> bool:
        """Connect and receive until the connection ends; return whether events were received.

        Raises Unauthorized if only an operator can help, another ChannelError if no connection is possible.
        """
        self._handle, self._receiving, self._save = handle, receiving, save or _forget
        self.is_receiving = False
        try:
            turn = nullcontext() if self.session.can_resume else self._pace.turn(self._shards)
            async with turn:
                socket = await self._connect()
            await self._receive(socket)
        finally:
            await self._close()
        return self.is_receiving

    async def _connect(self) -> GatewaySocket:
        """Open a connection and identify or resume."""
        url, session = self._trusted_url(self.session.url), self.session
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS + HELLO_TIMEOUT_SECONDS):
                socket = await self._socket_type.from_client(
                    self._client,
                    initial=True,
                    gateway=URL(url) if url and session.can_resume else None,
                    shard_id=self._shard,
                    session=session.id if session.can_resume else None,
                    sequence=session.sequence,
                    resume=session.can_resume,
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            session.url = ""  # the next attempt uses the configured URL
            refused = refusal(error)
            raise Unreachable(f"gateway: {refused.why if refused else type(error).__name__}") from None
        except (ReconnectWebSocket, discord.ConnectionClosed) as ended:
            raise self._closed(ended) or Ambiguous("gateway: Discord sent no hello") from None
        except (KeyError, TypeError, ValueError, zlib.error):
            raise Ambiguous("gateway: Discord sent no hello") from None
        if not socket.has_hello:
            raise Ambiguous("gateway: Discord sent no hello")
        return socket

    async def _receive(self, socket: GatewaySocket) -> None:
        """Handle frames until the connection ends."""
        try:
            while True:
                await socket.poll_event()
        except (ReconnectWebSocket, discord.ConnectionClosed) as ended:
            error = self._closed(ended)
            if error is not None:
                raise error from None
            if isinstance(ended, ReconnectWebSocket) and not ended.resume:  # an invalid session
                self.session.reset()
                await asyncio.sleep(random.uniform(*REIDENTIFY_SECONDS))  # noqa: S311 - as Discord asks
        except (aiohttp.ClientError, OSError) as error:
            raise connection_error("gateway", error) from None
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
            raise Ambiguous(f"gateway: Discord sent a malformed frame ({type(error).__name__})") from None

    def _closed(self, ended: Exception) -> ChannelError | None:
        """Return the error for a connection's close code; None if the next connection simply resumes."""
        code = getattr(ended, "code", None) or (self.socket.socket.close_code if self.socket else None)
        if code == SHARDING_REQUIRED_CLOSE:
            return ShardingRequired(f"gateway: the bot is in too many servers ({code})")
        if code in _FATAL_CLOSES:
            return Unauthorized(f"gateway: {_FATAL_CLOSES[code]} ({code})")
        if code in SESSION_ENDING_CLOSES:
            self.session.reset()
        return RateLimited(RATE_LIMITED_SECONDS, scope="account") if code == RATE_LIMITED_CLOSE else None

    async def commit(self, event: Event) -> None:
        """Handle an event until it is stored; raises ChannelError if only an operator can help."""
        if event.get("t") in {"READY", "RESUMED"}:
            self.is_receiving = True
            self._receiving(True)  # noqa: FBT003 - the port's signature
        failures = 0
        while True:
            wait = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
            try:
                if await self._handle(event):
                    return
            except ChannelError as error:
                if error.remedy == "operator":
                    raise
                log.warning("discord.event_delayed", error=str(error))
                wait = error.retry_after if isinstance(error, RateLimited) else wait
            failures += 1
            await self._wait(wait)

    async def _wait(self, seconds: float) -> None:
        while seconds > 0 and self.socket is not None:
            self.socket.show_alive()
            await asyncio.sleep(min(seconds, MIN_SILENCE_SECONDS / 2))
            seconds -= MIN_SILENCE_SECONDS / 2
        if self.socket is not None:
            self.socket.show_alive()

    async def on_committed(self, socket: GatewaySocket) -> None:
        """Take over the session that a connection has reached, and store it."""
        self.session.id = socket.session_id or ""
        self.session.sequence = socket.sequence
        self.session.url = self._trusted_url(str(socket.gateway))
        await self._save(self.session)

    async def _close(self) -> None:
        """Close the connection so that its session can be resumed."""
        socket, self.socket = self.socket, None
        if socket is not None:
            with suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await socket.close(RESUMABLE_CLOSE)

    def _trusted_url(self, url: str) -> str:
        """Return the resume URL if it is at Discord or at the configured origin, else ""."""
        try:
            given = origin_of(url)
        except ValueError:
            return ""
        is_secure = (given.scheme, given.port) == ("https", HTTPS_PORT)
        is_discord = is_secure and given.host.endswith(".discord.gg")
        is_socket = url.lower().startswith(("ws://", "wss://"))
        is_home = is_discord or given == self._settings.gateway_url.origin
        return url if is_socket and is_home else ""


def intents_of(settings: DiscordSettings) -> discord.Intents:
    """Return the events that are asked for."""
    return discord.Intents(
        guilds=True, messages=True, reactions=True, message_content=settings.message_content
    )


def _client(api: Api, settings: DiscordSettings, shard: int, shards: int) -> discord.Client:
    """Return the library's client, which only describes the connection: nothing is cached or parsed."""
    discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False  # voice is not used
    client = discord.Client(
        intents=intents_of(settings),
        shard_id=shard,
        shard_count=shards,
        max_messages=None,
        member_cache_flags=discord.MemberCacheFlags.none(),
        chunk_guilds_at_startup=False,
    )
    client.http = api.bot
    client.loop = asyncio.get_running_loop()
    client._connection.parsers = {}  # noqa: SLF001 - events are decoded by `codec`
    return client


def _silence_seconds(hello: Event) -> float:
    """Return after which silence a connection is dead; raises ValueError for an unusable interval."""
    interval = float(hello["d"]["heartbeat_interval"]) / 1000
    if not 0 < interval < float("inf"):
        raise ValueError("the heartbeat interval is not positive")
    return max(MIN_SILENCE_SECONDS, SILENT_INTERVALS * interval)


def _parse_frame(text: str) -> Event | None:
    """Return a frame's content, or None if it is malformed."""
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        frame = None
    if not isinstance(frame, dict):
        log.warning("discord.frame_skipped")
        return None
    return frame


async def _refuse(_event: Event) -> bool:
    return False


async def _forget(_session: GatewaySession) -> None:
    return None


def _ignore(_is_receiving: bool, _reason: str = "", /) -> None:  # noqa: FBT001 - the port's signature
    return None
