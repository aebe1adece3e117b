"""Store how far each room was read, and which rooms exist, in the channel's state.

A marker holds the last accepted message of a room, the room's server (empty for a private conversation) and
whether it is a thread. It is written after the message was accepted, never before; a lost write only means
that known messages are read again. A receiver writes a new room at once if the platform does
not list it, such as a private conversation or an archived thread at Discord.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from channels.port import ChannelState

PREFIX = "seen/"
WRITE_INTERVAL_SECONDS = 3.0
"""Seconds between two writes."""

BATCH_SIZE = 500
MAX_ROOMS = 10_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMarker:
    """The read position of a room."""

    message: int
    guild: str = ""
    is_thread: bool = False

    def encode(self) -> str:
        """Return the marker as a value of the channel's state."""
        return json.dumps([str(self.message), self.guild, self.is_thread])


def decode_marker(note: str) -> ReadMarker | None:
    """Return the marker that `encode` wrote; None for any other value."""
    try:
        message, guild, is_thread = json.loads(note)
        return ReadMarker(message=int(message), guild=str(guild), is_thread=bool(is_thread))
    except (ValueError, TypeError, OverflowError):
        return None


class ReadMarkers:
    """The markers of all rooms, the least recently used first."""

    def __init__(self, state: ChannelState, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._markers: OrderedDict[str, ReadMarker] = OrderedDict()
        self._changed: dict[str, None] = {}
        self._saved_at = float("-inf")
        self._is_loaded = False

    async def load(self) -> None:
        """Read the stored markers once; raises what the state raises."""
        if self._is_loaded:
            return
        stored = {
            name.removeprefix(PREFIX): decode_marker(value)
            for name, value in (await self._state.list(PREFIX)).items()
        }
        valid = [(room, marker) for room, marker in stored.items() if marker is not None and room.isdecimal()]
        for room, marker in sorted(valid, key=lambda one: one[1].message):
            self._markers.setdefault(room, marker)
        self._is_loaded = True

    def last(self, room: str) -> int | None:
        """Return the last accepted message of a room."""
        marker = self._markers.get(room)
        return marker.message if marker else None

    def newest(self) -> int | None:
        """Return the last accepted message of all rooms."""
        return max((marker.message for marker in self._markers.values()), default=None)

    def update(self, room: str, marker: ReadMarker) -> bool:
        """Record a room's last message; return whether the room is new."""
        known = self._markers.get(room)
        if known is None or marker.message > known.message:
            is_thread = marker.is_thread or (known is not None and known.is_thread)
            self._markers[room] = replace(marker, is_thread=is_thread)
            self._changed[room] = None
        self._markers.move_to_end(room)
        while len(self._markers) > MAX_ROOMS:
            evicted, _ = self._markers.popitem(last=False)
            self._changed.pop(evicted, None)
        return known is None

    def list_private(self, limit: int) -> list[str]:
        """Return the private conversations, the most recent first."""
        rooms = [room for room, marker in reversed(self._markers.items()) if not marker.guild]
        return rooms[:limit]

    def list_threads(self, guild: str, limit: int) -> list[str]:
        """Return the threads of a server, the most recent first."""
        rooms = [
            room
            for room, marker in reversed(self._markers.items())
            if marker.is_thread and marker.guild == guild
        ]
        return rooms[:limit]

    async def save(self, *, at_once: bool = False) -> None:
        """Write changed markers, at most every WRITE_INTERVAL_SECONDS unless `at_once`."""
        if not self._changed or (not at_once and self._clock() - self._saved_at < WRITE_INTERVAL_SECONDS):
            return
        self._saved_at = self._clock()
        while self._changed:
            rooms = list(self._changed)[:BATCH_SIZE]
            try:
                await self._state.set({PREFIX + room: self._markers[room].encode() for room in rooms})
            except Exception as error:  # noqa: BLE001 - any error of the state's store; the next event tries again
                log.warning("channel.read_markers_save_failed", error=repr(error))
                return
            for room in rooms:
                self._changed.pop(room, None)
