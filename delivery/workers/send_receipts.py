"""Receipts of accepted sends, written to a file at once, so that a kill before the commit repeats nothing.

Between a platform's response and the commit the process waits for the write lock and the disk. A receipt is
one `write` to a file. It survives the process, but not a crash of the machine, because the file is not
synced. The next process on the same data directory records the receipts before it sends anything.
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
"""The size from which the file is rewritten with only the pending receipts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReceipt:
    """A delivery that the platform accepted: the attempt, the platform's message id and the duration."""

    delivery: str
    attempt: int
    platform_id: str
    duration_ms: float


class SendReceipts:
    """The receipts of one data directory, which one process uses at a time."""

    def __init__(self, path: Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_file_bytes = max_file_bytes
        self._pending = {one.delivery: one for one in _read(path)}
        self._file: int | None = None
        self._size = 0

    @property
    def pending(self) -> tuple[SendReceipt, ...]:
        """The receipts that are not removed; at the start, those that an earlier process left."""
        return tuple(self._pending.values())

    def get(self, delivery: str) -> SendReceipt | None:
        """Return the receipt of a delivery, or None."""
        return self._pending.get(delivery)

    def append(self, receipt: SendReceipt) -> None:
        """Write a receipt; a failure is only logged, and the delivery is then as safe as without receipts."""
        self._pending[receipt.delivery] = receipt
        try:
            if self._file is None or self._size > self._max_file_bytes:
                self._rewrite()
            else:
                self._write(self._file, [receipt])
        except OSError as error:
            self.close()  # the last record may be partial: the next receipt begins a new file
            log.warning("delivery.receipt_failed", delivery=receipt.delivery, error=str(error))

    def remove(self, delivery: str) -> None:
        """Remove a receipt that is recorded in the database."""
        self._pending.pop(delivery, None)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _rewrite(self) -> None:
        """Replace the file by one with only the pending receipts, as soon as that is complete."""
        partial = self._path.with_suffix(".new")
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            self._size = 0
            self._write(file, self._pending.values())
            partial.replace(self._path)
        except OSError:
            os.close(file)
            raise
        self.close()
        self._file = file

    def _write(self, file: int, receipts: Iterable[SendReceipt]) -> None:
        content = "".join(f"{json.dumps(asdict(one))}\n" for one in receipts).encode()
        self._size += len(content)
        if os.write(file, content) != len(content):
            raise OSError(f"{self._path}: the disk is full, the receipt was written in part")


def _read(path: Path) -> list[SendReceipt]:
    """Return the receipts in a file; a partial record is skipped."""
    receipts = []
    try:
        records = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    for record in records:
        try:
            receipts.append(_parse(json.loads(record)))
        except (ValueError, TypeError, KeyError):
            log.warning("delivery.receipt_skipped", path=str(path))
    return receipts


def _parse(fields: dict[str, object]) -> SendReceipt:
    return SendReceipt(
        delivery=str(fields["delivery"]),
        attempt=int(str(fields["attempt"])),
        platform_id=str(fields["platform_id"]),
        duration_ms=float(str(fields["duration_ms"])),
    )
