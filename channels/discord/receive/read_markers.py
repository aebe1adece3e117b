"""How far each room is known, and which rooms there are: kept in the channel's notes through restarts.

A note holds the last message that was accepted in a room, the room's server (none for a private
conversation) and whether it is a thread. It is written after the message was accepted, never before: what
is lost of it costs a second look at messages that are known by their keys. A room that was never seen is
noted at once, because Discord lists neither private conversations nor threads that were archived.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from channels.port import Notes

PREFIX = "seen/"
PAUSE = 3.0
"""Seconds between two writes."""

BATCH = 500
MOST = 10_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What is known of a room."""

    message: int
    guild: str = ""
    is_thread: bool = False

    def dump(self) -> str:
        """Return it as a note."""
        return json.dumps([str(self.message), self.guild, self.is_thread])


def load(note: str) -> Mark | None:
    """Return what a note says; None for one that says nothing."""
    try:
        message, guild, is_thread = json.loads(note)
        return Mark(message=int(message), guild=str(guild), is_thread=bool(is_thread))
    except (ValueError, TypeError, OverflowError):
        return None


class Seen:
    """The marks of all rooms, the least recent first."""

    def __init__(self, notes: Notes, clock: Callable[[], float] = time.monotonic) -> None:
        self._notes = notes
        self._clock = clock
        self._marks: OrderedDict[str, Mark] = OrderedDict()
        self._changed: dict[str, None] = {}
        self._written = float("-inf")
        self._is_read = False

    async def read(self) -> None:
        """Read the notes, once; raises what the store raises."""
        if self._is_read:
            return
        marks = {
            name.removeprefix(PREFIX): load(note) for name, note in (await self._notes.all(PREFIX)).items()
        }
        known = [(room, mark) for room, mark in marks.items() if mark is not None and room.isdecimal()]
        for room, mark in sorted(known, key=lambda one: one[1].message):
            self._marks.setdefault(room, mark)
        self._is_read = True

    def last(self, room: str) -> int | None:
        """Return the last message that was accepted in a room."""
        mark = self._marks.get(room)
        return mark.message if mark else None

    def newest(self) -> int | None:
        """Return the last message that was accepted anywhere."""
        return max((mark.message for mark in self._marks.values()), default=None)

    def put(self, room: str, mark: Mark) -> bool:
        """Remember a room's last message; say whether the room is new."""
        known = self._marks.get(room)
        if known is None or mark.message > known.message:
            self._marks[room] = mark
            self._changed[room] = None
        self._marks.move_to_end(room)
        while len(self._marks) > MOST:
            gone, _ = self._marks.popitem(last=False)
            self._changed.pop(gone, None)
        return known is None

    def private(self, most: int) -> list[str]:
        """Return the private conversations, the latest first."""
        found = [room for room, mark in reversed(self._marks.items()) if not mark.guild]
        return found[:most]

    def threads(self, guild: str, most: int) -> list[str]:
        """Return the threads of a server, the latest first."""
        found = [
            room for room, mark in reversed(self._marks.items()) if mark.is_thread and mark.guild == guild
        ]
        return found[:most]

    async def keep(self, *, at_once: bool = False) -> None:
        """Write what has changed, if the last write is long enough ago."""
        if not self._changed or (not at_once and self._clock() - self._written < PAUSE):
            return
        self._written = self._clock()
        while self._changed:
            rooms = list(self._changed)[:BATCH]
            try:
                await self._notes.put({PREFIX + room: self._marks[room].dump() for room in rooms})
            except Exception as error:  # noqa: BLE001 - a store of any kind; it is tried again with the next event
                log.warning("discord: how far the rooms are read is not noted: %r", error)
                return
            for room in rooms:
                self._changed.pop(room, None)
