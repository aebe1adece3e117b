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

MAX_FILE_BYTES = 16_384
"""A file that has grown so large is written anew, with only what is not in the ledger yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReceipt:
    """A delivery that the platform took: by which attempt, in how long, and what it is called there."""

    delivery: str
    attempt: int
    platform_id: str
    duration_ms: float


class SendReceipts:
    """The notes of one data directory, which one process uses at a time."""

    def __init__(self, path: Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_file_bytes = max_file_bytes
        self._pending = {one.delivery: one for one in _read(path)}
        self._file: int | None = None
        self._size = 0

    @property
    def pending(self) -> tuple[SendReceipt, ...]:
        """Return what is noted and not forgotten: at first, the page that the process before us left."""
        return tuple(self._pending.values())

    def get(self, delivery: str) -> SendReceipt | None:
        """Return what is noted of a delivery."""
        return self._pending.get(delivery)

    def append(self, receipt: SendReceipt) -> None:
        """Write an arrival down; where that cannot be, it is only as safe as it was without a note."""
        self._pending[receipt.delivery] = receipt
        try:
            if self._file is None or self._size > self._max_file_bytes:
                self._rewrite()
            else:
                self._write(self._file, [receipt])
        except OSError as error:
            self.close()  # a line may have been cut short: the next note begins a new page
            log.warning("delivery.receipt_failed", delivery=receipt.delivery, error=str(error))

    def remove(self, delivery: str) -> None:
        """Drop a note: the ledger has it."""
        self._pending.pop(delivery, None)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _rewrite(self) -> None:
        """Begin a new file with what still stands; the old one holds until the new one is complete."""
        partial = self._path.with_suffix(".new")
        page = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            self._size = 0
            self._write(page, self._pending.values())
            partial.replace(self._path)
        except OSError:
            os.close(page)
            raise
        self.close()
        self._file = page

    def _write(self, file: int, receipts: Iterable[SendReceipt]) -> None:
        lines = "".join(f"{json.dumps(asdict(one))}\n" for one in receipts).encode()
        self._size += len(lines)
        if os.write(file, lines) != len(lines):
            raise OSError(f"{self._path}: the disk takes no more")


def _read(path: Path) -> list[SendReceipt]:
    """Return the notes in a file; a line that a full disk cut short is no note."""
    arrivals = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            arrivals.append(_parse(json.loads(line)))
        except (ValueError, TypeError, KeyError):
            log.warning("delivery.receipt_skipped", path=str(path))
    return arrivals


def _parse(fields: dict[str, object]) -> SendReceipt:
    return SendReceipt(
        delivery=str(fields["delivery"]),
        attempt=int(str(fields["attempt"])),
        platform_id=str(fields["platform_id"]),
        duration_ms=float(str(fields["duration_ms"])),
    )
