"""Keep the end of a job's output in memory and publish it to a file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sandbox.host.run.job_spec import OUTPUT, TRUNCATED


class OutputTail:
    """Keeps the last `limit` bytes; `flush` writes them. Memory is at most twice the limit."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._buffer = bytearray()
        self._truncated = False
        self.dirty = False

    def add(self, chunk: bytes) -> None:
        """Append output."""
        self._buffer += chunk
        self.dirty = True
        if len(self._buffer) > 2 * self._limit:
            self._cut()

    def content(self) -> bytes:
        """Return the last bytes."""
        self._cut()
        return bytes(self._buffer)

    def flush(self) -> None:
        """Replace the file by the present output; readers see the old or the new one.

        While the disk is full the old one stays, and a later call writes what is in memory.
        """
        if not self.dirty:
            return
        content = self.content()
        fresh = self._directory / f".{OUTPUT}"
        with suppress(OSError):
            if self._truncated:
                (self._directory / TRUNCATED).touch(mode=0o600)
            fresh.write_bytes(content)
            fresh.rename(self._directory / OUTPUT)
            self.dirty = False

    def _cut(self) -> None:
        surplus = len(self._buffer) - self._limit
        if surplus > 0:
            del self._buffer[:surplus]
            self._truncated = True
