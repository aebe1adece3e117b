"""A follower's bounded buffer: what does not fit is dropped, and the follower is told to read again."""

from __future__ import annotations

from collections.abc import AsyncIterator

from delivery.broker.light_event import Bell
from delivery.events.port import Recorded

MOST_EVENTS = 256
MOST_BYTES = 1024 * 1024


class Follower(AsyncIterator[Recorded | None]):
    """Hands over what was offered, in order; None stands for anything that may be missing."""

    __slots__ = ("_bell", "_bytes", "_items")

    def __init__(self) -> None:
        self._items: list[Recorded | None] = []
        self._bytes = 0
        self._bell = Bell()

    def offer(self, recorded: Recorded) -> None:
        """Append an event, or give everything up for a fresh reading when there is no room."""
        self._bytes += len(recorded.raw)
        if len(self._items) >= MOST_EVENTS or self._bytes > MOST_BYTES:
            self.doubt()
            return
        self._items.append(recorded)
        self._bell.ring()

    def doubt(self) -> None:
        """Say that something may be missing; what was buffered will be read again too."""
        self._items.clear()
        self._items.append(None)
        self._bytes = 0
        self._bell.ring()

    async def __anext__(self) -> Recorded | None:
        while not self._items:
            await self._bell.wait()
        item = self._items.pop(0)
        self._bytes -= len(item.raw) if item is not None else 0
        return item
