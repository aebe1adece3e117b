"""What has arrived, written down the moment we hear of it, so that a kill before our commit repeats nothing.

Between a platform's answer and our commit lie the writer's queue and a wait for the disk. A note is one
`write` to a file, which outlives the process that made it (not the machine: the disk is not waited for).
The next process on the same data directory reads the notes and records them before it sends anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

PAGE_BYTES = 16_384
"""A file that has grown so large is written anew, with only what is not in the ledger yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A delivery that the platform took: by which attempt, in how long, and what it is called there."""

    delivery: str
    attempt: int
    platform_id: str
    duration_ms: float


class Arrivals:
    """The notes of one data directory, which one process uses at a time."""

    def __init__(self, path: Path, *, page_bytes: int = PAGE_BYTES) -> None:
        self._path = path
        self._page_bytes = page_bytes
        self._standing = {one.delivery: one for one in _read(path)}
        self._page: int | None = None
        self._size = 0

    @property
    def standing(self) -> tuple[Arrival, ...]:
        """Return what is noted and not forgotten: at first, the page that the process before us left."""
        return tuple(self._standing.values())

    def of(self, delivery: str) -> Arrival | None:
        """Return what is noted of a delivery."""
        return self._standing.get(delivery)

    def note(self, arrival: Arrival) -> None:
        """Write an arrival down; where that cannot be, it is only as safe as it was without a note."""
        self._standing[arrival.delivery] = arrival
        try:
            if self._page is None or self._size > self._page_bytes:
                self._turn_page()
            else:
                self._write(self._page, [arrival])
        except OSError as error:
            self.close()  # a line may have been cut short: the next note begins a new page
            log.warning("delivery.not_noted", delivery=arrival.delivery, error=str(error))

    def forget(self, delivery: str) -> None:
        """Drop a note: the ledger has it."""
        self._standing.pop(delivery, None)

    def close(self) -> None:
        """Close the file."""
        if self._page is not None:
            os.close(self._page)
            self._page = None

    def _turn_page(self) -> None:
        """Begin a new file with what still stands; the old one holds until the new one is complete."""
        partial = self._path.with_suffix(".new")
        page = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            self._size = 0
            self._write(page, self._standing.values())
            partial.replace(self._path)
        except OSError:
            os.close(page)
            raise
        self.close()
        self._page = page

    def _write(self, page: int, arrivals: Iterable[Arrival]) -> None:
        lines = "".join(f"{json.dumps(asdict(one))}\n" for one in arrivals).encode()
        self._size += len(lines)
        if os.write(page, lines) != len(lines):
            raise OSError(f"{self._path}: the disk takes no more")


def _read(path: Path) -> list[Arrival]:
    """Return the notes in a file; a line that a full disk cut short is no note."""
    arrivals = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            arrivals.append(_parsed(json.loads(line)))
        except (ValueError, TypeError, KeyError):
            log.warning("delivery.note_unreadable", path=str(path))
    return arrivals


def _parsed(fields: dict[str, object]) -> Arrival:
    return Arrival(
        delivery=str(fields["delivery"]),
        attempt=int(str(fields["attempt"])),
        platform_id=str(fields["platform_id"]),
        duration_ms=float(str(fields["duration_ms"])),
    )
