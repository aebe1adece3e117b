"""What waits to be written to one socket: bounded, and given up when the peer does not read."""

from __future__ import annotations

import asyncio

from aiohttp import WSMsgType, web

from delivery.broker.light_event import Bell
from gateway.web.stream.frames import Written

MOST_FRAMES = 256
MOST_BYTES = 1024 * 1024
FRAMES_AHEAD = 2
"""Frames that are made ready while the network takes nothing more."""

SLOW_AFTER = 5.0
"""Seconds in which a peer takes nothing at all, after which it is too slow."""


class TooSlow(Exception):
    """The peer does not read what it asked for."""


class Outgoing:
    """A queue whose writers wait for room: a slow reader slows its own replay and nobody else's.

    While the network takes nothing more, hardly anything is queued: what happens meanwhile waits where all
    readers share it, and costs a reader that is stuck neither memory nor work.
    """

    __slots__ = (
        "_begun",
        "_bytes",
        "_frames",
        "_patience",
        "_room",
        "_socket",
        "_some",
        "_watch",
        "last_seq",
    )

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.last_seq = 0
        self._socket = socket
        self._frames: list[Written] = []
        self._bytes = 0
        self._some = Bell()
        self._room: asyncio.Event | None = None  # made when somebody waits: idle sockets are many
        self._begun: float | None = None
        self._patience: asyncio.Timeout | None = None
        self._watch: asyncio.TimerHandle | None = None

    async def put(self, frame: Written) -> None:
        """Queue a frame, after waiting for room."""
        while self._frames and (
            (self._begun is not None and len(self._frames) >= FRAMES_AHEAD)
            or len(self._frames) >= MOST_FRAMES
            or self._bytes + len(frame.body) > MOST_BYTES
        ):
            self._room = self._room or asyncio.Event()
            self._room.clear()
            await self._room.wait()
        self._frames.append(frame)
        self._bytes += len(frame.body)
        self._some.ring()

    async def run(self) -> None:
        """Write until cancelled; raises TooSlow, and ConnectionError when the peer is gone."""
        try:
            async with asyncio.timeout(None) as self._patience:
                while True:
                    while not self._frames:
                        await self._some.wait()
                    await self._write(self._next())
        except TimeoutError:
            raise TooSlow from None
        finally:
            if self._watch is not None:
                self._watch.cancel()

    def _next(self) -> Written:
        frame = self._frames.pop(0)
        self._bytes -= len(frame.body)
        if self._room is not None:
            self._room.set()
        return frame

    async def _write(self, frame: Written) -> None:
        if frame.seq is not None:
            self.last_seq = frame.seq  # a frame that is begun comes before any close frame
        loop = asyncio.get_running_loop()
        self._begun = loop.time()
        if self._watch is None:  # one timer for many frames
            self._watch = loop.call_later(SLOW_AFTER, self._look)
        await self._socket.send_frame(frame.body, WSMsgType.TEXT)
        self._begun = None

    def _look(self) -> None:
        """End the writing when one frame has been under way for too long."""
        self._watch = None
        if self._begun is None or self._patience is None:
            return
        loop = asyncio.get_running_loop()
        ends = self._begun + SLOW_AFTER
        if loop.time() < ends:
            self._watch = loop.call_at(ends, self._look)
        else:
            self._patience.reschedule(loop.time())

    async def flush(self) -> None:
        """Write what is queued, as far as the peer takes it."""
        try:
            while self._frames:
                async with asyncio.timeout(SLOW_AFTER):
                    await self._socket.send_frame(self._next().body, WSMsgType.TEXT)
        except TimeoutError:
            raise TooSlow from None
