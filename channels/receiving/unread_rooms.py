"""Rooms whose missed messages are still to be read; they are stored, so that a restart reads them too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from channels.errors import ChannelError
from channels.port import ChannelState
from channels.receiving.attempts import concerns_one_room

PREFIX = "unread/"
MAX_FAILING_ROOMS = 3
"""Rooms that may be unread while further ones are still read at once: else the platform is at fault."""

RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds before each attempt to read the rooms."""

ReadRoom = Callable[[str, str], Awaitable[None]]
"""Read a room's missed messages; `note` is what was stored with it. Raises if they must be read later."""

GroupOf = Callable[[str], str]
"""Return the group of a note: rooms of different groups are read at the same time."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Note:
    """What is noted of a room; a later note with the same text is another note."""

    text: str


class UnreadRooms:
    """The rooms of one bot that are still to be read, each with a note of where reading starts."""

    def __init__(
        self,
        state: ChannelState,
        *,
        delays: Sequence[float] = RETRY_SECONDS,
        group_of: GroupOf | None = None,
    ) -> None:
        self._state = state
        self._delays = delays
        self._group_of = group_of
        self._notes: dict[str, _Note] = {}
        self._awaited: dict[str, asyncio.Event] = {}
        self._released: set[str] = set()
        self._changed = asyncio.Event()
        self._writes = asyncio.Lock()
        self._is_loaded = False

    def __contains__(self, room: str) -> bool:
        return room in self._notes

    @property
    def are_many(self) -> bool:
        """Whether so many rooms are unread that further ones should be read later too."""
        return len(self._notes) >= MAX_FAILING_ROOMS

    @property
    def rooms(self) -> list[str]:
        """The rooms that are to be read."""
        return list(self._notes)

    def note(self, room: str) -> str:
        """Return the note of a room, "" if it is not unread."""
        return self._notes[room].text if room in self._notes else ""

    async def load(self) -> None:
        """Read the stored rooms once; raises what the state raises."""
        if self._is_loaded:
            return
        stored = await self._state.list(PREFIX)
        self._notes |= {name.removeprefix(PREFIX): _Note(note) for name, note in stored.items() if note}
        self._is_loaded = True
        self._changed.set()

    async def add(self, room: str, note: str) -> None:
        """Store a room that is to be read later, unless it is unread; raises what the state raises."""
        if room not in self._notes:
            await self.put({room: note})

    async def put(self, notes: Mapping[str, str]) -> None:
        """Store rooms that are to be read from now on, and replace the notes of those that are unread.

        A room that is being read is read once more. Raises what the state raises.
        """
        async with self._writes:
            await self._state.set({PREFIX + room: note for room, note in notes.items()})
            self._notes |= {room: _Note(note) for room, note in notes.items()}
            self._released -= notes.keys()
        self._changed.set()

    async def remove(self, room: str) -> None:
        """Forget a room that was read; raises what the state raises."""
        if room in self._notes:
            await self._remove(room, self._notes[room])

    def is_awaited(self, room: str) -> bool:
        """Return whether what is new in a room waits until the room has been read."""
        return room in self._notes and room not in self._released

    async def wait_until_read(self, room: str) -> None:
        """Return when a room has been read or released; it is read before others of its group."""
        if self.is_awaited(room):
            await self._awaited.setdefault(room, asyncio.Event()).wait()

    def release(self, room: str) -> None:
        """Let go on what waits until a room has been read, and what comes until it is noted again."""
        if room in self._notes:
            self._released.add(room)
        if room in self._awaited:
            self._awaited.pop(room).set()

    async def run(self, read: ReadRoom) -> None:
        """Read the rooms again and again until each has been read, and those that are added; never ends."""
        failures = 0
        while True:
            if not self._notes:
                await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(self._delays[min(failures, len(self._delays) - 1)])
            groups: dict[str, list[str]] = {}
            for room, note in self._notes.items():
                group = self._group_of(note.text) if self._group_of else ""
                groups.setdefault(group, []).append(room)
            were_read = await asyncio.gather(*(self._read_group(rooms, read) for rooms in groups.values()))
            failures = 0 if any(were_read) else failures + 1

    async def _read_group(self, rooms: list[str], read: ReadRoom) -> bool:
        """Read rooms one after the other, first those that are waited for; return whether any was read.

        Ends at an error that does not concern one room alone.
        """
        count = 0
        while rooms:
            room = next((one for one in rooms if one in self._awaited), rooms[0])
            rooms.remove(room)
            try:
                await self._read(room, read)
                count += 1
            except Exception as error:  # noqa: BLE001 - whatever the reason, the room is read later
                log.warning("channel.room_not_read", room=room, error=repr(error))
                self._notes[room] = self._notes.pop(room)  # the last in the next attempt
                if not (isinstance(error, ChannelError) and concerns_one_room(error)):
                    break
        return count > 0

    async def _read(self, room: str, read: ReadRoom) -> None:
        note = self._notes[room]
        await read(room, note.text)
        await self._remove(room, note)

    async def _remove(self, room: str, note: _Note) -> None:
        """Forget a room, unless it has another note by now."""
        async with self._writes:
            if self._notes[room] is not note:
                return
            await self._state.set({PREFIX + room: ""})
            del self._notes[room]
            self._released.discard(room)
        self.release(room)
