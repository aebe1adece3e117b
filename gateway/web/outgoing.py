"""What waits to be written to one socket: bounded, and given up when the peer does not read."""

from __future__ import annotations

import asyncio

from aiohttp import WSMsgType, web

from delivery.streams.bell import Bell
from gateway.web.frames import Written

MOST_FRAMES = 256
MOST_BYTES = 1024 * 1024
SLOW_AFTER = 5.0
"""Seconds in which a peer takes nothing at all, after which it is too slow."""


class TooSlow(Exception):
    """The peer does not read what it asked for."""


class Outgoing:
    """A queue whose writers wait for room: a slow reader slows its own replay and nobody else's."""

    __slots__ = ("_bytes", "_frames", "_room", "_socket", "_some", "last_seq")

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.last_seq = 0
        self._socket = socket
        self._frames: list[Written] = []
        self._bytes = 0
        self._some = Bell()
        self._room: asyncio.Event | None = None  # made when somebody waits: idle sockets are many

    async def put(self, frame: Written) -> None:
        """Queue a frame, after waiting for room."""
        while self._frames and (
            len(self._frames) >= MOST_FRAMES or self._bytes + len(frame.body) > MOST_BYTES
        ):
            self._room = self._room or asyncio.Event()
            self._room.clear()
            await self._room.wait()
        self._frames.append(frame)
        self._bytes += len(frame.body)
        self._some.ring()

    async def run(self) -> None:
        """Write until cancelled; raises TooSlow, and ConnectionError when the peer is gone."""
        while True:
            while not self._frames:
                await self._some.wait()
            frame = self._frames.pop(0)
            self._bytes -= len(frame.body)
            if self._room is not None:
                self._room.set()
            await self._write(frame)

    async def _write(self, frame: Written) -> None:
        if frame.seq is not None:
            self.last_seq = frame.seq  # a frame that is begun comes before any close frame
        try:
            async with asyncio.timeout(SLOW_AFTER):
                await self._socket.send_frame(frame.body, WSMsgType.TEXT)
        except TimeoutError:
            raise TooSlow from None

    async def flush(self) -> None:
        """Write what is queued, as far as the peer takes it."""
        while self._frames:
            await self._write(self._frames.pop(0))
