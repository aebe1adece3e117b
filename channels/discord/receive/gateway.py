"""A connection to Discord's gateway: hello, identify or resume, heartbeats, events in order.

The sequence number that a resume names is advanced only after an event was taken; so whatever was not
stored when a connection ends is sent again by Discord. A beat that is not answered ends the connection.
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
from urllib.parse import urlsplit

import aiohttp

from channels.discord.api import CONNECT_PATIENCE
from channels.discord.settings import DiscordSettings
from channels.errors import Ambiguous, ChannelError, RateLimited, Unauthorized, Unreachable
from channels.port import Receiving

Event = Mapping[str, Any]
Take = Callable[[Event], Awaitable[bool]]
"""Take an event; False when it could not be stored and has to be taken again."""

QUERY = "v=10&encoding=json"
HELLO_PATIENCE = 20.0
LARGEST = 64 * 1024 * 1024
QUEUE = 1000
GRACE = 0.3
RESUMABLE_CLOSE = 4000
"""A close with 1000 or 1001 would end the session."""

PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between tries while Discord cannot be reached, or events cannot be stored."""

FRESH_PAUSE = (1.0, 5.0)
"""Discord asks for a random wait within these before a refused session is replaced."""

SPACING, LONGEST_SPACING, REMEMBERED, PATIENT = 5.0, 300.0, 3600.0, 10
"""Seconds between two identifies, at first and at most, how long one counts, and how many are let pass before
the pause grows: Discord resets the token of a bot that begins a thousand sessions a day."""

GUILDS, GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1, 1 << 9, 1 << 12, 1 << 15
GUILD_REACTIONS, DIRECT_REACTIONS = 1 << 10, 1 << 13

_FATAL = {
    4004: "the token is refused",
    4010: "the shard is refused",
    4011: "the bot is in too many servers for one connection (sharding is not supported)",
    4012: "the version of the gateway is refused",
    4013: "the intents are refused",
    4014: "the message content intent is not granted: Developer Portal, Bot, Message Content Intent"
    " (or message_content = false)",
}
_SESSION_OVER = {4003, 4007, 4009}

log = logging.getLogger(__name__)


class Op(IntEnum):
    """What a frame is about."""

    DISPATCH = 0
    HEARTBEAT = 1
    IDENTIFY = 2
    RESUME = 6
    RECONNECT = 7
    INVALID_SESSION = 9
    HELLO = 10
    HEARTBEAT_ACK = 11


@dataclass(slots=True)
class Session:
    """What a resume needs to know."""

    id: str = ""
    url: str = ""
    sequence: int | None = None

    @property
    def resumes(self) -> bool:
        """Whether there is something to resume."""
        return bool(self.id) and self.sequence is not None

    def forget(self) -> None:
        """The next connection begins anew."""
        self.id, self.url, self.sequence = "", "", None


def identify_wait(times: Sequence[float], now: float) -> float:
    """Return the seconds until a new session may be begun, by when the last ones were."""
    recent = [when for when in times if now - when < REMEMBERED]
    if not recent:
        return 0.0
    gap = min(SPACING * 2.0 ** max(0, len(recent) - PATIENT), LONGEST_SPACING)
    return max(0.0, recent[-1] + gap - now)


class Gateway:
    """One bot's connections to the gateway, one after the other; the session outlives them."""

    def __init__(self, http: aiohttp.ClientSession, settings: DiscordSettings) -> None:
        self._http = http
        self._settings = settings
        self._identified: deque[float] = deque(maxlen=32)
        self.session = Session()

    async def converse(self, take: Take, receiving: Receiving) -> bool:
        """Connect and receive until the connection ends; say whether it ever came to receiving.

        Raises Unauthorized when only an operator can help, another ChannelError when there is no connection.
        """
        if not self.session.resumes:
            await asyncio.sleep(identify_wait(self._identified, time.monotonic()))
        base = self.session.url if self.session.resumes and self.session.url else self._settings.gateway_url
        url = f"{base}{'&' if '?' in base else '?'}{QUERY}"
        try:
            socket = await self._connect(url)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.session.url = ""  # the next try goes by the front door
            raise Unreachable(f"gateway: {type(error).__name__}") from None
        if not self.session.resumes:
            self._identified.append(time.monotonic())
        line = _Line(socket, self.session, self._settings, take, receiving)
        try:
            await line.run()
        finally:
            await socket.close(code=RESUMABLE_CLOSE)
        return line.is_receiving

    async def _connect(self, url: str) -> aiohttp.ClientWebSocketResponse:
        async with asyncio.timeout(CONNECT_PATIENCE):
            return await self._http.ws_connect(
                url, max_msg_size=LARGEST, timeout=aiohttp.ClientWSTimeout(ws_close=GRACE)
            )


class _Line:
    """One connection."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        session: Session,
        settings: DiscordSettings,
        take: Take,
        receiving: Receiving,
    ) -> None:
        self._socket = socket
        self._session = session
        self._settings = settings
        self._take = take
        self._receiving = receiving
        self._events: asyncio.Queue[Event] = asyncio.Queue(QUEUE)
        self._over = asyncio.Event()
        self._is_answered = True
        self.is_receiving = False

    async def run(self) -> None:
        """Speak and listen until one side has enough."""
        interval = await self._greet()
        tasks = [asyncio.create_task(work) for work in (self._beat(interval), self._read(), self._work())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._over.set()
            await _end(tasks)
        _raise_worst(tasks)

    async def _greet(self) -> float:
        """Wait for the hello, then identify or resume; return the seconds between beats."""
        try:
            async with asyncio.timeout(HELLO_PATIENCE):
                hello = _parsed(await self._socket.receive())
            content = hello.get("d")
            interval = float(content["heartbeat_interval"]) / 1000 if isinstance(content, dict) else 0.0
        except (TimeoutError, KeyError, TypeError, ValueError):
            interval = 0.0
        if interval <= 0:
            self._judge_close()
            raise Ambiguous("gateway: no hello")
        await self._send(self._resume() if self._session.resumes else self._identify())
        return interval

    def _identify(self) -> Event:
        intents = GUILDS | GUILD_MESSAGES | GUILD_REACTIONS | DIRECT_MESSAGES | DIRECT_REACTIONS
        intents |= MESSAGE_CONTENT if self._settings.message_content else 0
        properties = {"os": "linux", "browser": "dovecote", "device": "dovecote"}
        token = self._settings.token.get_secret_value()
        return {"op": Op.IDENTIFY, "d": {"token": token, "intents": intents, "properties": properties}}

    def _resume(self) -> Event:
        session = {"session_id": self._session.id, "seq": self._session.sequence}
        return {"op": Op.RESUME, "d": {"token": self._settings.token.get_secret_value(), **session}}

    async def _send(self, frame: Event) -> None:
        try:
            await self._socket.send_str(json.dumps(frame))
        except (aiohttp.ClientError, OSError) as error:
            raise Ambiguous(f"gateway: {type(error).__name__}") from None

    async def _beat(self, interval: float) -> None:
        """Beat until a beat is not answered."""
        await asyncio.sleep(interval * random.random())  # noqa: S311 - spreads the beats, guards nothing
        while self._is_answered:
            self._is_answered = False
            await self._send_beat()
            await asyncio.sleep(interval)
        log.warning("discord: a heartbeat was not answered; connecting again")

    async def _send_beat(self) -> None:
        await self._send({"op": Op.HEARTBEAT, "d": self._session.sequence})

    async def _read(self) -> None:
        """Take frames until the connection ends; raises Unauthorized when it ends for good."""
        while True:
            message = await self._socket.receive()
            if message.type in {
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.CLOSING,
                aiohttp.WSMsgType.CLOSED,
                aiohttp.WSMsgType.ERROR,
            }:
                self._judge_close()
                return
            if not await self._follow(_parsed(message)):
                return

    async def _follow(self, frame: Event) -> bool:
        """Do what a frame says; False when the connection is to end."""
        match frame.get("op"):
            case Op.DISPATCH:
                await self._events.put(frame)
            case Op.HEARTBEAT:
                await self._send_beat()
            case Op.HEARTBEAT_ACK:
                self._is_answered = True
            case Op.RECONNECT:
                return False
            case Op.INVALID_SESSION:
                if frame.get("d") is not True:
                    self._session.forget()
                await asyncio.sleep(random.uniform(*FRESH_PAUSE))  # noqa: S311 - as Discord asks
                return False
        return True

    def _judge_close(self) -> None:
        code = self._socket.close_code
        if code in _FATAL:
            raise Unauthorized(f"gateway: {_FATAL[code]} ({code})")
        if code in _SESSION_OVER:
            self._session.forget()

    async def _work(self) -> None:
        """Take events in order, each until it is stored; only then is Discord free to forget it."""
        while not self._over.is_set():
            event = await self._events.get()
            self._note(event)
            if not await self._insist({**event, "session": self._session.id}):
                return
            number = event.get("s")
            if isinstance(number, int) and not isinstance(number, bool):
                self._session.sequence = number

    async def _insist(self, event: Event) -> bool:
        failures = 0
        while not self._over.is_set():
            try:
                if await self._take(event):
                    return True
                wait = PAUSES[min(failures, len(PAUSES) - 1)]
            except ChannelError as error:
                if error.remedy == "operator":
                    raise
                log.warning("discord: an event has to wait: %s", error)
                wait = PAUSES[min(failures, len(PAUSES) - 1)]
                wait = error.retry_after if isinstance(error, RateLimited) else wait
            failures += 1
            await asyncio.sleep(wait)
        return False

    def _note(self, event: Event) -> None:
        """Learn the session from the events that tell of it."""
        name, content = event.get("t"), event.get("d")
        if name == "READY" and isinstance(content, dict):
            self._session.id = str(content.get("session_id") or "")
            self._session.url = self._trusted(content.get("resume_gateway_url"))
        if name in {"READY", "RESUMED"}:
            self.is_receiving = True
            self._receiving(True)  # noqa: FBT003 - the port's signature

    def _trusted(self, url: object) -> str:
        """Return where to resume: only at Discord, or at the very host that was configured."""
        if not isinstance(url, str):
            return ""
        configured, given = urlsplit(self._settings.gateway_url), urlsplit(url)
        host = given.hostname or ""
        is_known = host == configured.hostname or host.endswith(".discord.gg")
        return url if is_known and given.scheme == configured.scheme else ""


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel until all have ended: no event may still be taken when the next connection begins."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=GRACE)


def _raise_worst(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Raise what ended a task; what only an operator can mend comes first."""
    found = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    errors = [error for error in found if error is not None]
    errors.sort(key=lambda error: not isinstance(error, Unauthorized))
    if errors:
        raise errors[0]


def _parsed(message: aiohttp.WSMessage) -> Event:
    """Return a frame's content; what makes no sense is an empty one."""
    if message.type is not aiohttp.WSMsgType.TEXT:
        return {}
    try:
        frame = json.loads(message.data)
    except (ValueError, RecursionError):
        log.warning("discord: a frame that makes no sense is left out")
        return {}
    return frame if isinstance(frame, dict) else {}
