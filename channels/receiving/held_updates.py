"""Updates of rooms in which missed messages are still being read: they are stored after these, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from channels.receiving.unread_rooms import UnreadRooms

MAX_HELD = 1000
"""Updates that are held at a time; beyond it those of the room with the most are stored."""

HOLD_SECONDS = 300.0
"""Seconds that an update waits for what was missed in its room."""

_Update = TypeVar("_Update")

log = structlog.get_logger(__name__)


class HeldUpdates(Generic[_Update]):
    """The updates of one bot that wait.

    Until an update is stored, the platform keeps it: unacknowledged, or in the history of the room.
    """

    def __init__(
        self,
        unread: UnreadRooms,
        store: Callable[[_Update], Awaitable[None]],
        *,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        self._unread = unread
        self._store = store
        self._hold_seconds = hold_seconds
        self._updates: dict[str, deque[_Update]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def hold(self, room: str, update: _Update) -> bool:
        """Return whether an update waits and is stored later; any other is to be stored now."""
        if room not in self._updates:
            if not self._unread.is_awaited(room):
                return False
            self._updates[room] = deque()
            self._tasks[room] = asyncio.create_task(self._store_later(room))
        self._updates[room].append(update)
        if sum(map(len, self._updates.values())) > MAX_HELD:
            self._release_early(max(self._updates, key=lambda one: len(self._updates[one])))
        return True

    async def finish(self, room: str) -> None:
        """Store what waits in a room that has been read; until it is forgotten, further updates do not wait.

        Needed if the platform does not send again what was held: the room's note still leads to it meanwhile.
        """
        task = self._tasks.get(room)
        self._unread.release(room)
        if task is not None:
            await asyncio.wait([task])

    def drop(self) -> None:
        """Drop the updates that wait: the platform sends them again on the next connection."""
        for updates in self._updates.values():
            updates.clear()

    async def close(self) -> None:
        """Drop the updates that wait, and end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _store_later(self, room: str) -> None:
        """Store the updates of a room when it has been read, or when they have waited long enough."""
        try:
            try:
                async with asyncio.timeout(self._hold_seconds):
                    await self._unread.wait_until_read(room)
            except TimeoutError:
                self._release_early(room)
            while updates := self._updates[room]:
                await self._store(updates.popleft())
        except Exception as error:  # noqa: BLE001 - the platform keeps what was not acknowledged
            log.warning("channel.update_not_stored", room=room, error=repr(error))
        finally:
            del self._updates[room], self._tasks[room]

    def _release_early(self, room: str) -> None:
        """Let the updates of a room be stored before what was missed there."""
        if self._unread.is_awaited(room):
            log.warning("channel.room_read_late", room=room, updates=len(self._updates[room]))
        self._unread.release(room)
