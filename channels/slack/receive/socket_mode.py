"""Receive envelopes by Socket Mode, over connections that Slack replaces at times.

Each envelope is acknowledged after it was stored, one at a time. Slack announces when it will close a
connection: then the next one is opened first, the rest of the old one is read, and the old one is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from channels.errors import ChannelError, RateLimited, Unauthorized
from channels.port import ReceiverStatus
from channels.slack.api import Api

BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between attempts while Slack is unreachable or updates cannot be stored."""

RECEIVING, INTERRUPTED = True, False
DRAIN_SECONDS = 0.3
"""Seconds without a frame after which a connection being replaced counts as empty."""

MIN_CONNECTION_SECONDS = 1.0
"""Seconds a replacement must last; after a shorter one, the client pauses."""

TOO_MANY_CONNECTIONS_SECONDS = 30.0
"""Seconds to wait when too many connections are open."""

_ENVELOPES = {"events_api", "slash_commands", "interactive"}
HandleEnvelope = Callable[[dict[str, Any]], Awaitable[bool]]

log = logging.getLogger(__name__)


class Backoff:
    """Waits between failures; raises an error that only an operator can fix."""

    def __init__(self, receiving: ReceiverStatus) -> None:
        self.receiving = receiving
        self._failures = 0

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self._failures = 0

    async def back_off(self, error: ChannelError) -> None:
        """Wait before the next attempt."""
        if error.remedy == "operator":
            raise error
        self.receiving(INTERRUPTED, str(error))
        log.warning("slack.receiving_interrupted: %s", error)
        if isinstance(error, RateLimited):
            await asyncio.sleep(error.retry_after)
            self._failures += 1
        else:
            await self.pause()

    async def pause(self) -> None:
        """Wait for a time that grows with the failures so far."""
        await asyncio.sleep(BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)])
        self._failures += 1


class SocketModeClient:
    """Receives the envelopes of one app; `handle` stores one and returns whether to acknowledge it."""

    def __init__(self, api: Api, handle: HandleEnvelope, backoff: Backoff, stop: asyncio.Event) -> None:
        self._api = api
        self._handle = handle
        self._backoff = backoff
        self._stop = stop

    async def run(self) -> None:
        """Keep a connection open until `stop` is set; replace one that worked after a short pause."""
        while not self._stop.is_set():
            try:
                async with AsyncExitStack() as connections:
                    await self._run_connections(connections)
            except ChannelError as error:
                await self._backoff.back_off(error)
                continue
            if not self._stop.is_set():
                await self._backoff.pause()

    async def _run_connections(self, connections: AsyncExitStack) -> None:
        """Receive envelopes from a connection, and from those that replace it in time."""
        socket = await self._open(connections)
        opened_at = -MIN_CONNECTION_SECONDS
        while await self._receive_frames(socket):
            if time.monotonic() - opened_at < MIN_CONNECTION_SECONDS:
                return
            following = await self._open_next(connections)
            if following is None:
                await self._receive_frames(socket)
                return
            await self._drain(socket)
            await socket.close()
            socket, opened_at = following, time.monotonic()

    async def _open(self, connections: AsyncExitStack) -> aiohttp.ClientWebSocketResponse:
        socket = await self._api.open_socket()
        connections.push_async_callback(socket.close)
        return socket

    async def _open_next(self, connections: AsyncExitStack) -> aiohttp.ClientWebSocketResponse | None:
        """Open the next connection while one is open; None if that fails."""
        if self._stop.is_set():
            return None
        try:
            return await self._open(connections)
        except ChannelError as error:
            if error.remedy == "operator":
                raise
            log.info("slack.reconnect_failed: %s", error)
            return None

    async def _receive_frames(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        """Read frames until the connection ends; True if it must be replaced before that."""
        async for frame in socket:
            outcome = await self._handle_frame(socket, frame)
            if outcome is not None:
                return outcome
            if self._stop.is_set():
                return False
        self._backoff.receiving(INTERRUPTED, "Slack closed the connection")
        return False

    async def _handle_frame(
        self, socket: aiohttp.ClientWebSocketResponse, frame: aiohttp.WSMessage
    ) -> bool | None:
        """Handle one frame; None: go on, True: use another connection, False: end this one."""
        envelope = _parse_json(frame.data) if frame.type is aiohttp.WSMsgType.TEXT else None
        kind = envelope.get("type") if isinstance(envelope, dict) else None
        if not isinstance(envelope, dict) or not isinstance(kind, str):
            return None
        if kind == "hello":
            self._backoff.reset()
            self._backoff.receiving(RECEIVING)
        elif kind == "disconnect":
            _check_reason(envelope.get("reason"))
            return True
        elif kind in _ENVELOPES and not await self._store_and_ack(socket, envelope):
            self._backoff.receiving(INTERRUPTED, "an update cannot be stored")
            return False
        return None

    async def _drain(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Read the rest of a connection that was replaced, so that order is kept."""
        while not self._stop.is_set():
            try:
                frame = await socket.receive(timeout=DRAIN_SECONDS)
            except TimeoutError:
                return
            if frame.type is not aiohttp.WSMsgType.TEXT or await self._handle_frame(socket, frame) is False:
                return

    async def _store_and_ack(self, socket: aiohttp.ClientWebSocketResponse, envelope: dict[str, Any]) -> bool:
        """Store an envelope, then acknowledge it; later ones wait, so that order is kept."""
        for pause in BACKOFF_SECONDS:
            if self._stop.is_set():
                return False
            if await self._handle(envelope):
                break
            await asyncio.sleep(pause)
        else:
            return False
        if self._stop.is_set():
            return False
        try:
            await socket.send_str(json.dumps({"envelope_id": envelope.get("envelope_id")}))
        except (aiohttp.ClientError, OSError):
            return False
        return True


def _check_reason(reason: object) -> None:
    """Raise for a disconnect that reconnecting at once does not help."""
    if reason == "too_many_websockets":
        raise RateLimited(TOO_MANY_CONNECTIONS_SECONDS, scope="account")
    if reason == "link_disabled":
        raise Unauthorized("Socket Mode is disabled for this app: enable it, or set mode = http")


def _parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
