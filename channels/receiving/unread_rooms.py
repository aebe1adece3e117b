"""Rooms whose missed messages could not be read yet; they are stored, so that a restart reads them too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from channels.port import ChannelState

PREFIX = "unread/"
MAX_FAILING_ROOMS = 3
"""Rooms that may be unread while further ones are still read at once: else the platform is at fault."""

RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds before each attempt to read the rooms."""

ReadRoom = Callable[[str, str], Awaitable[None]]
"""Read a room's missed messages; `note` is what was stored with it. Raises if they must be read later."""

log = structlog.get_logger(__name__)


class UnreadRooms:
    """The rooms of one bot that are still to be read, each with a note of where reading starts."""

    def __init__(self, state: ChannelState, *, delays: Sequence[float] = RETRY_SECONDS) -> None:
        self._state = state
        self._delays = delays
        self._notes: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._is_loaded = False

    def __contains__(self, room: str) -> bool:
        return room in self._notes

    @property
    def are_many(self) -> bool:
        """Whether so many rooms are unread that further ones should be read later too."""
        return len(self._notes) >= MAX_FAILING_ROOMS

    async def load(self) -> None:
        """Read the stored rooms once; raises what the state raises."""
        if self._is_loaded:
            return
        stored = await self._state.list(PREFIX)
        self._notes |= {name.removeprefix(PREFIX): note for name, note in stored.items() if note}
        self._is_loaded = True
        self._changed.set()

    async def add(self, room: str, note: str) -> None:
        """Store a room that is to be read later; raises what the state raises."""
        if room not in self._notes:
            await self._state.set({PREFIX + room: note})
            self._notes[room] = note
            self._changed.set()

    async def run(self, read: ReadRoom) -> None:
        """Read the rooms again and again until each has been read, and those that are added; never ends."""
        failures = 0
        while True:
            if not self._notes:
                await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(self._delays[min(failures, len(self._delays) - 1)])
            were_read = [await self._read(room, note, read) for room, note in list(self._notes.items())]
            failures = 0 if any(were_read) else failures + 1

    async def _read(self, room: str, note: str, read: ReadRoom) -> bool:
        try:
            await read(room, note)
            await self._state.set({PREFIX + room: ""})
        except Exception as error:  # noqa: BLE001 - whatever the reason, the room is read later
            log.warning("channel.room_not_read", room=room, error=repr(error))
            return False
        self._notes.pop(room, None)
        return True
