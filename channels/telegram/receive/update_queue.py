"""Track which polled updates are stored and which wait for their album; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from channels.telegram.receive import codec

MAX_ALBUM_PARTS = 10
"""Most files an album can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """Updates that are accepted together: one update, or the parts of one album."""

    updates: tuple[object, ...]
    update_ids: tuple[int, ...]
    room: int | None
    album: str | None = None


class UpdateQueue:
    """A poller's position in the stream of updates.

    `offset` is the number of the first update that is not stored; Telegram may delete all before it. An album
    is due `seconds` after its first part arrived, or when it is full. Later updates of the same room wait for
    it, updates of other rooms do not. Nothing here outlives the process: Telegram sends unconfirmed updates
    again.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.offset: int | None = None
        self._seconds = seconds
        self._clock = clock
        self._stored: set[int] = set()
        self._album_started: dict[str, float] = {}

    def due(self, updates: Sequence[object]) -> list[UpdateBatch]:
        """Return the batches that can be accepted now, in order."""
        waiting_rooms: set[int | None] = set()
        batches = []
        candidates = self._batches(updates)
        present = {batch.album for batch in candidates}
        self._album_started = {
            album: since for album, since in self._album_started.items() if album in present
        }
        for batch in candidates:
            if batch.room is not None and batch.room in waiting_rooms:
                continue
            if batch.album is not None and not self._is_complete(batch):
                waiting_rooms.add(batch.room)
                continue
            batches.append(batch)
        return batches

    @property
    def wait(self) -> float | None:
        """Seconds until an album is due; None if no album is waiting."""
        if not self._album_started:
            return None
        return max(0.0, min(self._album_started.values()) + self._seconds - self._clock())

    def mark_stored(self, batch: UpdateBatch) -> None:
        """Mark a batch as stored."""
        self._stored.update(batch.update_ids)
        if batch.album is not None:
            self._album_started.pop(batch.album, None)

    def advance(self, updates: Sequence[object]) -> bool:
        """Move the offset past the stored updates up to the first gap; return whether it moved.

        After a week without updates Telegram continues with a random number. If that is lower, it ignores the
        offset, and the offset starts again there.
        """
        before, numbers = self.offset, sorted(_update_ids(updates))
        self.offset = min([before or 0, *numbers[:1]])
        for number in numbers:
            if number >= self.offset and number not in self._stored:
                break
            self.offset = max(self.offset, number + 1)
        self._stored = {number for number in self._stored if number >= self.offset}
        return self.offset != before

    def _batches(self, updates: Sequence[object]) -> list[UpdateBatch]:
        """Group the parts of albums at the place of the first part; skip stored updates."""
        albums: dict[str, list[object]] = {}
        order: list[tuple[str | None, list[object]]] = []
        for update in updates:
            number = codec.update_id_of(update)
            if number is None or number in self._stored:
                continue
            album = codec.album_of(update)
            if album is not None and album in albums:
                albums[album].append(update)
                continue
            parts = [update]
            order.append((album, parts))
            if album is not None:
                albums[album] = parts
        return [_batch(album, parts) for album, parts in order]

    def _is_complete(self, batch: UpdateBatch) -> bool:
        assert batch.album is not None
        since = self._album_started.setdefault(batch.album, self._clock())
        return len(batch.update_ids) >= MAX_ALBUM_PARTS or self._clock() - since >= self._seconds


def _batch(album: str | None, parts: Sequence[object]) -> UpdateBatch:
    return UpdateBatch(
        updates=tuple(parts), update_ids=tuple(_update_ids(parts)), room=codec.room_of(parts[0]), album=album
    )


def _update_ids(updates: Sequence[object]) -> list[int]:
    return [number for update in updates if (number := codec.update_id_of(update)) is not None]
