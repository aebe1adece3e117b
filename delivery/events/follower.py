"""The bounded buffer of one follower of a conversation: an overflow is reported as a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from delivery.events.port import StoredEvent

MAX_EVENTS = 256
MAX_BYTES = 1024 * 1024


class LightEvent:
    """An event for one waiter, a tenth of the size of asyncio.Event, because every reader has one.

    `set` without a waiter has no effect, so check the state before waiting.
    """

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiter, if there is one."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next `set`."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Follower(AsyncIterator[StoredEvent | None]):
    """Yields the pushed events in order; None marks a gap, where events may be missing."""

    __slots__ = ("_bytes", "_items", "_ready")

    def __init__(self) -> None:
        self._items: list[StoredEvent | None] = []
        self._bytes = 0
        self._ready = LightEvent()

    def push(self, event: StoredEvent) -> None:
        """Append an event; when the buffer is full, replace its content by a gap."""
        self._bytes += len(event.raw)
        if len(self._items) >= MAX_EVENTS or self._bytes > MAX_BYTES:
            self.mark_gap()
            return
        self._items.append(event)
        self._ready.set()

    def mark_gap(self) -> None:
        """Replace the buffered events by a gap, after which the follower reads the stream again."""
        self._items.clear()
        self._items.append(None)
        self._bytes = 0
        self._ready.set()

    async def __anext__(self) -> StoredEvent | None:
        while not self._items:
            await self._ready.wait()
        item = self._items.pop(0)
        self._bytes -= len(item.raw) if item is not None else 0
        return item
