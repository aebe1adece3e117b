"""What waits to be written to one socket: bounded, and given up when the peer does not read."""

from __future__ import annotations

import asyncio

from aiohttp import WSMsgType, web

from delivery.broker.light_event import LightEvent
from gateway.web.stream.frames import EncodedFrame

MAX_FRAMES = 256
MAX_BYTES = 1024 * 1024
MAX_STALLED_FRAMES = 2
"""Frames that are made ready while the network takes nothing more."""

SLOW_AFTER_SECONDS = 5.0
"""Seconds in which a peer takes nothing at all, after which it is too slow."""


class ClientTooSlow(Exception):
    """The peer does not read what it asked for."""


class SendBuffer:
    """A queue whose writers wait for room: a slow reader slows its own replay and nobody else's.

    While the network takes nothing more, hardly anything is queued: what happens meanwhile waits where all
    readers share it, and costs a reader that is stuck neither memory nor work.
    """

    __slots__ = (
        "_bytes",
        "_frames",
        "_not_empty",
        "_not_full",
        "_socket",
        "_stall_timer",
        "_timeout",
        "_write_started",
        "last_seq",
    )

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.last_seq = 0
        self._socket = socket
        self._frames: list[EncodedFrame] = []
        self._bytes = 0
        self._not_empty = LightEvent()
        self._not_full: asyncio.Event | None = None  # made when somebody waits: idle sockets are many
        self._write_started: float | None = None
        self._timeout: asyncio.Timeout | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    async def put(self, frame: EncodedFrame) -> None:
        """Queue a frame, after waiting for room."""
        while self._frames and (
            (self._write_started is not None and len(self._frames) >= MAX_STALLED_FRAMES)
            or len(self._frames) >= MAX_FRAMES
            or self._bytes + len(frame.body) > MAX_BYTES
        ):
            self._not_full = self._not_full or asyncio.Event()
            self._not_full.clear()
            await self._not_full.wait()
        self._frames.append(frame)
        self._bytes += len(frame.body)
        self._not_empty.set()

    async def run(self) -> None:
        """Write until cancelled; raises TooSlow, and ConnectionError when the peer is gone."""
        try:
            async with asyncio.timeout(None) as self._timeout:
                while True:
                    while not self._frames:
                        await self._not_empty.wait()
                    await self._write(self._pop())
        except TimeoutError:
            raise ClientTooSlow from None
        finally:
            if self._stall_timer is not None:
                self._stall_timer.cancel()

    def _pop(self) -> EncodedFrame:
        frame = self._frames.pop(0)
        self._bytes -= len(frame.body)
        if self._not_full is not None:
            self._not_full.set()
        return frame

    async def _write(self, frame: EncodedFrame) -> None:
        if frame.seq is not None:
            self.last_seq = frame.seq  # a frame that is begun comes before any close frame
        loop = asyncio.get_running_loop()
        self._write_started = loop.time()
        if self._stall_timer is None:  # one timer for many frames
            self._stall_timer = loop.call_later(SLOW_AFTER_SECONDS, self._check_stalled)
        await self._socket.send_frame(frame.body, WSMsgType.TEXT)
        self._write_started = None

    def _check_stalled(self) -> None:
        """End the writing when one frame has been under way for too long."""
        self._stall_timer = None
        if self._write_started is None or self._timeout is None:
            return
        loop = asyncio.get_running_loop()
        ends = self._write_started + SLOW_AFTER_SECONDS
        if loop.time() < ends:
            self._stall_timer = loop.call_at(ends, self._check_stalled)
        else:
            self._timeout.reschedule(loop.time())

    async def flush(self) -> None:
        """Write what is queued, as far as the peer takes it."""
        try:
            while self._frames:
                async with asyncio.timeout(SLOW_AFTER_SECONDS):
                    await self._socket.send_frame(self._pop().body, WSMsgType.TEXT)
        except TimeoutError:
            raise ClientTooSlow from None
