"""The bounded send buffer of a WebSocket, which fails when the peer does not read."""

from __future__ import annotations

import asyncio

from aiohttp import WSMsgType, web

from delivery.events.follower import LightEvent
from gateway.web.stream.frames import EncodedFrame

MAX_FRAMES = 256
MAX_BYTES = 1024 * 1024
MAX_STALLED_FRAMES = 2
"""Frames that are buffered while the network accepts nothing."""

SLOW_AFTER_SECONDS = 5.0
"""Seconds without progress after which a peer is too slow."""


class ClientTooSlow(Exception):
    """The peer does not read fast enough."""


class SendBuffer:
    """A send queue whose writers wait for space, so that a slow reader delays only its own replay.

    While the network accepts nothing, at most two frames are queued. Later events stay in the buffer that
    all readers share, so that a stuck reader costs neither memory nor CPU time.
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
        self._not_full: asyncio.Event | None = None  # created on demand, because most sockets are idle
        self._write_started: float | None = None
        self._timeout: asyncio.Timeout | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    async def put(self, frame: EncodedFrame) -> None:
        """Queue a frame; waits for space."""
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
        """Write until cancelled; raises ClientTooSlow, and ConnectionError when the peer is gone."""
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
            self.last_seq = frame.seq  # a started frame arrives before any close frame
        loop = asyncio.get_running_loop()
        self._write_started = loop.time()
        if self._stall_timer is None:  # one timer for many frames
            self._stall_timer = loop.call_later(SLOW_AFTER_SECONDS, self._check_stalled)
        await self._socket.send_frame(frame.body, WSMsgType.TEXT)
        self._write_started = None

    def _check_stalled(self) -> None:
        """Stop writing when a frame is not accepted in time."""
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
        """Write the queued frames; raises ClientTooSlow when the peer does not read."""
        try:
            while self._frames:
                async with asyncio.timeout(SLOW_AFTER_SECONDS):
                    await self._socket.send_frame(self._pop().body, WSMsgType.TEXT)
        except TimeoutError:
            raise ClientTooSlow from None
