"""Connect to Discord's gateway: hello, identify or resume, heartbeats, events in order.

The sequence number for a resume advances only after an event was handled, so Discord sends again whatever was
not stored when a connection ends. A heartbeat without an acknowledgement ends the connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import aiohttp

from channels.discord.rest import CONNECT_TIMEOUT_SECONDS
from channels.discord.settings import DiscordSettings
from channels.errors import Ambiguous, ChannelError, RateLimited, Unauthorized, Unreachable
from channels.port import ReceiverStatus
from egress.policy import refusal
from egress.urls import origin_of

Event = Mapping[str, Any]
HandleEvent = Callable[[Event], Awaitable[bool]]
"""Handle an event; False if it could not be stored and must be handled again."""

QUERY = "v=10&encoding=json"
HELLO_TIMEOUT_SECONDS = 20.0
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_QUEUED_EVENTS = 1000
HTTPS_PORT = 443
CLOSE_SECONDS = 0.3
RESUMABLE_CLOSE = 4000
"""The close code; 1000 or 1001 would end the session."""

BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between attempts while Discord is unreachable or events cannot be stored."""

REIDENTIFY_SECONDS = (1.0, 5.0)
"""Bounds of the random wait before an invalid session is replaced, as Discord asks."""

IDENTIFY_SECONDS, MAX_IDENTIFY_SECONDS, IDENTIFY_WINDOW_SECONDS, FREE_IDENTIFIES = 5.0, 300.0, 3600.0, 10
"""Pause between two identifies (minimum, maximum), for how long one counts, and how many are free.

Further ones double the pause: Discord resets the token of a bot that begins a thousand sessions a day.
"""

GUILDS, GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1, 1 << 9, 1 << 12, 1 << 15
GUILD_REACTIONS, DIRECT_REACTIONS = 1 << 10, 1 << 13

_FATAL = {
    4004: "Discord refuses the token",
    4010: "Discord refuses the shard",
    4011: "the bot is in too many servers for one connection (sharding is not supported)",
    4012: "Discord refuses the gateway version",
    4013: "Discord refuses the intents",
    4014: "the message content intent is not granted: Developer Portal, Bot, Message Content Intent"
    " (or message_content = false)",
}
_SESSION_OVER = {4003, 4007, 4009}

log = logging.getLogger(__name__)


class Opcode(IntEnum):
    """The operation of a gateway frame."""

    DISPATCH = 0
    HEARTBEAT = 1
    IDENTIFY = 2
    RESUME = 6
    RECONNECT = 7
    INVALID_SESSION = 9
    HELLO = 10
    HEARTBEAT_ACK = 11


@dataclass(slots=True)
class GatewaySession:
    """The state that a resume needs."""

    id: str = ""
    url: str = ""
    sequence: int | None = None

    @property
    def can_resume(self) -> bool:
        """Whether there is a session to resume."""
        return bool(self.id) and self.sequence is not None

    def reset(self) -> None:
        """Forget the session, so that the next connection identifies."""
        self.id, self.url, self.sequence = "", "", None


def identify_wait(times: Sequence[float], now: float) -> float:
    """Return the seconds until a new session may begin, from the times of the last ones."""
    recent = [when for when in times if now - when < IDENTIFY_WINDOW_SECONDS]
    if not recent:
        return 0.0
    gap = min(IDENTIFY_SECONDS * 2.0 ** max(0, len(recent) - FREE_IDENTIFIES), MAX_IDENTIFY_SECONDS)
    return max(0.0, recent[-1] + gap - now)


class DiscordGateway:
    """Connects one bot to the gateway again and again; the session outlives a connection."""

    def __init__(self, http: aiohttp.ClientSession, settings: DiscordSettings) -> None:
        self._http = http
        self._settings = settings
        self._identify_times: deque[float] = deque(maxlen=32)
        self.session = GatewaySession()

    async def run(self, handle: HandleEvent, receiving: ReceiverStatus) -> bool:
        """Connect and receive until the connection ends; return whether events were received.

        Raises Unauthorized if only an operator can help, another ChannelError if no connection is possible.
        """
        if not self.session.can_resume:
            await asyncio.sleep(identify_wait(self._identify_times, time.monotonic()))
        base = (
            self.session.url if self.session.can_resume and self.session.url else self._settings.gateway_url
        )
        url = f"{base}{'&' if '?' in base else '?'}{QUERY}"
        try:
            socket = await self._connect(url)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.session.url = ""  # the next attempt uses the configured URL
            refused = refusal(error)
            raise Unreachable(f"gateway: {refused.why if refused else type(error).__name__}") from None
        if not self.session.can_resume:
            self._identify_times.append(time.monotonic())
        connection = _GatewayConnection(socket, self.session, self._settings, handle, receiving)
        try:
            await connection.run()
        finally:
            await socket.close(code=RESUMABLE_CLOSE)
        return connection.is_receiving

    async def _connect(self, url: str) -> aiohttp.ClientWebSocketResponse:
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            return await self._http.ws_connect(
                url, max_msg_size=MAX_FRAME_BYTES, timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS)
            )


class _GatewayConnection:
    """One connection to the gateway."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        session: GatewaySession,
        settings: DiscordSettings,
        handle: HandleEvent,
        receiving: ReceiverStatus,
    ) -> None:
        self._socket = socket
        self._session = session
        self._settings = settings
        self._handle = handle
        self._receiving = receiving
        self._events: asyncio.Queue[Event] = asyncio.Queue(MAX_QUEUED_EVENTS)
        self._stopped = asyncio.Event()
        self._is_heartbeat_acked = True
        self.is_receiving = False

    async def run(self) -> None:
        """Exchange frames until one side ends the connection."""
        interval = await self._handshake()
        tasks = [
            asyncio.create_task(work)
            for work in (self._run_heartbeat(interval), self._read_frames(), self._handle_events())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopped.set()
            await _cancel_all(tasks)
        _raise_first_error(tasks)

    async def _handshake(self) -> float:
        """Wait for hello, identify or resume, and return the heartbeat interval in seconds."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):
                hello = _parse_frame(await self._socket.receive())
            content = hello.get("d")
            interval = float(content["heartbeat_interval"]) / 1000 if isinstance(content, dict) else 0.0
        except (TimeoutError, KeyError, TypeError, ValueError):
            interval = 0.0
        if interval <= 0:
            self._check_close_code()
            raise Ambiguous("gateway: Discord sent no hello")
        await self._send(self._resume() if self._session.can_resume else self._identify())
        return interval

    def _identify(self) -> Event:
        intents = GUILDS | GUILD_MESSAGES | GUILD_REACTIONS | DIRECT_MESSAGES | DIRECT_REACTIONS
        intents |= MESSAGE_CONTENT if self._settings.message_content else 0
        properties = {"os": "linux", "browser": "dovecote", "device": "dovecote"}
        token = self._settings.token.get_secret_value()
        return {"op": Opcode.IDENTIFY, "d": {"token": token, "intents": intents, "properties": properties}}

    def _resume(self) -> Event:
        session = {"session_id": self._session.id, "seq": self._session.sequence}
        return {"op": Opcode.RESUME, "d": {"token": self._settings.token.get_secret_value(), **session}}

    async def _send(self, frame: Event) -> None:
        try:
            await self._socket.send_str(json.dumps(frame))
        except (aiohttp.ClientError, OSError) as error:
            raise Ambiguous(f"gateway: {type(error).__name__}") from None

    async def _run_heartbeat(self, interval: float) -> None:
        """Send heartbeats until one is not acknowledged."""
        await asyncio.sleep(interval * random.random())  # noqa: S311 - spreads heartbeats, not a secret
        while self._is_heartbeat_acked:
            self._is_heartbeat_acked = False
            await self._send_heartbeat()
            await asyncio.sleep(interval)
        log.warning("discord.heartbeat_missed")

    async def _send_heartbeat(self) -> None:
        await self._send({"op": Opcode.HEARTBEAT, "d": self._session.sequence})

    async def _read_frames(self) -> None:
        """Read frames until the connection ends; raises Unauthorized if it ends for good."""
        while True:
            message = await self._socket.receive()
            if message.type in {
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.CLOSING,
                aiohttp.WSMsgType.CLOSED,
                aiohttp.WSMsgType.ERROR,
            }:
                self._check_close_code()
                return
            if not await self._handle_frame(_parse_frame(message)):
                return

    async def _handle_frame(self, frame: Event) -> bool:
        """Handle a frame; False if the connection must end."""
        match frame.get("op"):
            case Opcode.DISPATCH:
                await self._events.put(frame)
            case Opcode.HEARTBEAT:
                await self._send_heartbeat()
            case Opcode.HEARTBEAT_ACK:
                self._is_heartbeat_acked = True
            case Opcode.RECONNECT:
                return False
            case Opcode.INVALID_SESSION:
                if frame.get("d") is not True:
                    self._session.reset()
                await asyncio.sleep(random.uniform(*REIDENTIFY_SECONDS))  # noqa: S311 - as Discord asks
                return False
        return True

    def _check_close_code(self) -> None:
        code = self._socket.close_code
        if code in _FATAL:
            raise Unauthorized(f"gateway: {_FATAL[code]} ({code})")
        if code in _SESSION_OVER:
            self._session.reset()

    async def _handle_events(self) -> None:
        """Handle events in order, each until it is stored; only then advance the sequence."""
        while not self._stopped.is_set():
            event = await self._events.get()
            self._update_session(event)
            if not await self._handle_until_stored({**event, "session": self._session.id}):
                return
            number = event.get("s")
            if isinstance(number, int) and not isinstance(number, bool):
                self._session.sequence = number

    async def _handle_until_stored(self, event: Event) -> bool:
        failures = 0
        while not self._stopped.is_set():
            try:
                if await self._handle(event):
                    return True
                wait = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
            except ChannelError as error:
                if error.remedy == "operator":
                    raise
                log.warning("discord.event_delayed: %s", error)
                wait = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
                wait = error.retry_after if isinstance(error, RateLimited) else wait
            failures += 1
            await asyncio.sleep(wait)
        return False

    def _update_session(self, event: Event) -> None:
        """Read the session from READY and RESUMED."""
        name, content = event.get("t"), event.get("d")
        if name == "READY" and isinstance(content, dict):
            self._session.id = str(content.get("session_id") or "")
            self._session.url = self._trusted_url(content.get("resume_gateway_url"))
        if name in {"READY", "RESUMED"}:
            self.is_receiving = True
            self._receiving(True)  # noqa: FBT003 - the port's signature

    def _trusted_url(self, url: object) -> str:
        """Return the resume URL if it is at Discord or at the configured origin, else ""."""
        try:
            given = origin_of(str(url))
        except ValueError:
            return ""
        is_secure = (given.scheme, given.port) == ("https", HTTPS_PORT)
        is_discord = is_secure and given.host.endswith(".discord.gg")
        is_socket = str(url).lower().startswith(("ws://", "wss://"))
        is_home = is_discord or given == self._settings.gateway_url.origin
        return str(url) if is_socket and is_home else ""


async def _cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel until all tasks have ended, so that no event is handled beside the next connection."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CLOSE_SECONDS)


def _raise_first_error(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Raise the error that ended a task; one that only an operator can fix comes first."""
    results = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    errors = [error for error in results if error is not None]
    errors.sort(key=lambda error: not isinstance(error, Unauthorized))
    if errors:
        raise errors[0]


def _parse_frame(message: aiohttp.WSMessage) -> Event:
    """Return a frame's content, or an empty object if it is malformed."""
    if message.type is not aiohttp.WSMsgType.TEXT:
        return {}
    try:
        frame = json.loads(message.data)
    except (ValueError, RecursionError):
        log.warning("discord.frame_skipped")
        return {}
    return frame if isinstance(frame, dict) else {}
