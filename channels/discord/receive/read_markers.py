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

from channels.port import ChannelState

PREFIX = "seen/"
WRITE_INTERVAL_SECONDS = 3.0
"""Seconds between two writes."""

BATCH_SIZE = 500
MAX_ROOMS = 10_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMarker:
    """What is known of a room."""

    message: int
    guild: str = ""
    is_thread: bool = False

    def encode(self) -> str:
        """Return it as a note."""
        return json.dumps([str(self.message), self.guild, self.is_thread])


def decode_marker(note: str) -> ReadMarker | None:
    """Return what a note says; None for one that says nothing."""
    try:
        message, guild, is_thread = json.loads(note)
        return ReadMarker(message=int(message), guild=str(guild), is_thread=bool(is_thread))
    except (ValueError, TypeError, OverflowError):
        return None


class ReadMarkers:
    """The marks of all rooms, the least recent first."""

    def __init__(self, state: ChannelState, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._markers: OrderedDict[str, ReadMarker] = OrderedDict()
        self._changed: dict[str, None] = {}
        self._saved_at = float("-inf")
        self._is_loaded = False

    async def load(self) -> None:
        """Read the notes, once; raises what the store raises."""
        if self._is_loaded:
            return
        marks = {
            name.removeprefix(PREFIX): decode_marker(note)
            for name, note in (await self._state.list(PREFIX)).items()
        }
        known = [(room, mark) for room, mark in marks.items() if mark is not None and room.isdecimal()]
        for room, mark in sorted(known, key=lambda one: one[1].message):
            self._markers.setdefault(room, mark)
        self._is_loaded = True

    def last(self, room: str) -> int | None:
        """Return the last message that was accepted in a room."""
        mark = self._markers.get(room)
        return mark.message if mark else None

    def newest(self) -> int | None:
        """Return the last message that was accepted anywhere."""
        return max((mark.message for mark in self._markers.values()), default=None)

    def update(self, room: str, marker: ReadMarker) -> bool:
        """Remember a room's last message; say whether the room is new."""
        known = self._markers.get(room)
        if known is None or marker.message > known.message:
            self._markers[room] = marker
            self._changed[room] = None
        self._markers.move_to_end(room)
        while len(self._markers) > MAX_ROOMS:
            gone, _ = self._markers.popitem(last=False)
            self._changed.pop(gone, None)
        return known is None

    def list_private(self, limit: int) -> list[str]:
        """Return the private conversations, the latest first."""
        found = [room for room, mark in reversed(self._markers.items()) if not mark.guild]
        return found[:limit]

    def list_threads(self, guild: str, limit: int) -> list[str]:
        """Return the threads of a server, the latest first."""
        found = [
            room for room, mark in reversed(self._markers.items()) if mark.is_thread and mark.guild == guild
        ]
        return found[:limit]

    async def save(self, *, at_once: bool = False) -> None:
        """Write what has changed, if the last write is long enough ago."""
        if not self._changed or (not at_once and self._clock() - self._saved_at < WRITE_INTERVAL_SECONDS):
            return
        self._saved_at = self._clock()
        while self._changed:
            rooms = list(self._changed)[:BATCH_SIZE]
            try:
                await self._state.set({PREFIX + room: self._markers[room].encode() for room in rooms})
            except Exception as error:  # noqa: BLE001 - a store of any kind; it is tried again with the next event
                log.warning("discord.read_markers_save_failed: %r", error)
                return
            for room in rooms:
                self._changed.pop(room, None)
