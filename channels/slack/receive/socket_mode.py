"""Socket Mode: one line of envelopes over connections that Slack replaces now and then.

An envelope is acknowledged after it was kept, one after the other. Slack says beforehand when it will end a
connection: then the next one is opened first, what the old one still holds is taken, and the old one closed.
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
"""Seconds between tries while Slack cannot be reached, or updates cannot be stored."""

RECEIVING, INTERRUPTED = True, False
DRAIN_SECONDS = 0.3
"""Seconds without a frame after which a connection that is being replaced holds nothing more."""

MIN_CONNECTION_SECONDS = 1.0
"""Seconds a connection that replaced another has to last; one that does not is followed after a pause."""

TOO_MANY_CONNECTIONS_SECONDS = 30.0
"""How long to wait when too many connections are open."""

_ENVELOPES = {"events_api", "slash_commands", "interactive"}
HandleEnvelope = Callable[[dict[str, Any]], Awaitable[bool]]

log = logging.getLogger(__name__)


class Backoff:
    """The pauses between failures; an error that only an operator can mend is raised."""

    def __init__(self, receiving: ReceiverStatus) -> None:
        self.receiving = receiving
        self._failures = 0

    def reset(self) -> None:
        """Begin again with the shortest pause."""
        self._failures = 0

    async def back_off(self, error: ChannelError) -> None:
        """Wait before the next try."""
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
        """Wait as long as the failures so far suggest."""
        await asyncio.sleep(BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)])
        self._failures += 1


class SocketModeClient:
    """The envelopes of one app; `take` keeps one and says whether Slack may forget it."""

    def __init__(self, api: Api, handle: HandleEnvelope, backoff: Backoff, stop: asyncio.Event) -> None:
        self._api = api
        self._handle = handle
        self._backoff = backoff
        self._stop = stop

    async def run(self) -> None:
        """Keep a connection open until told to stop; one that worked is replaced with hardly a pause."""
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
        """Take envelopes by a connection, and by those that replace it in time."""
        socket = await self._open(connections)
        beginning = -MIN_CONNECTION_SECONDS
        while await self._receive_frames(socket):
            if time.monotonic() - beginning < MIN_CONNECTION_SECONDS:
                return
            following = await self._open_next(connections)
            if following is None:
                await self._receive_frames(socket)
                return
            await self._drain(socket)
            await socket.close()
            socket, beginning = following, time.monotonic()

    async def _open(self, connections: AsyncExitStack) -> aiohttp.ClientWebSocketResponse:
        socket = await self._api.open_socket()
        connections.push_async_callback(socket.close)
        return socket

    async def _open_next(self, connections: AsyncExitStack) -> aiohttp.ClientWebSocketResponse | None:
        """Open the next connection while there is one; None when that fails, and there is no hurry."""
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
        """Take frames until the connection ends; True when it is to be replaced before it does."""
        async for frame in socket:
            outcome = await self._handle_frame(socket, frame)
            if outcome is not None:
                return outcome
            if self._stop.is_set():
                return False
        self._backoff.receiving(INTERRUPTED, "Slack's connection ended")
        return False

    async def _handle_frame(
        self, socket: aiohttp.ClientWebSocketResponse, frame: aiohttp.WSMessage
    ) -> bool | None:
        """Take one frame; None to go on, True to go on by another connection, False to end this one."""
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
        """Take what a connection that was replaced still holds, so that order is kept."""
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
    """A link that was disabled does not come back by trying, and one too many not at once."""
    if reason == "too_many_websockets":
        raise RateLimited(TOO_MANY_CONNECTIONS_SECONDS, scope="account")
    if reason == "link_disabled":
        raise Unauthorized("Socket Mode is switched off for this app: switch it on, or use mode = http")


def _parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
