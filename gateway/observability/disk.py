"""Check that the disks that the process writes to take a write, and that files can be opened."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from delivery.exhaustion import Resource, exhausted_resource

REUSE_SECONDS = 2.0
"""Seconds for which a result is reused, so that requests cannot cause many writes."""

PROBE_BYTES = 64 * 1024
FULL_BELOW_BYTES = 8 * 1024**2
"""Free bytes below which a disk counts as full: a transaction or a checkpoint may need more."""

LOW_BELOW_BYTES = 512 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskState:
    """Whether disks take writes and files can be opened, and whether little space is left.

    Each of `resources` is "ok" or the problem.
    """

    resources: Mapping[Resource, str]
    is_low: bool


class DiskProbe:
    """Writes a small file to each directory and deletes it; concurrent callers share one result.

    `read_free` returns the free bytes of a directory's disk, or raises OSError.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        clock: Callable[[], float] = monotonic,
        read_free: Callable[[Path], int] = lambda directory: shutil.disk_usage(directory).free,
    ) -> None:
        self._directories = directories
        self._clock = clock
        self._read_free = read_free
        self._result = DiskState(resources={}, is_low=False)
        self._done_at = float("-inf")
        self._lock = asyncio.Lock()

    async def run(self) -> DiskState:
        """Return the state of the disks and files; it may be REUSE_SECONDS old."""
        async with self._lock:
            if self._clock() - self._done_at > REUSE_SECONDS:
                self._result = await asyncio.to_thread(_probe, self._directories, self._read_free)
                self._done_at = self._clock()
            return self._result


def _probe(directories: Sequence[Path], read_free: Callable[[Path], int]) -> DiskState:
    result = dict.fromkeys(Resource, "ok")
    is_low = False
    for directory in directories:
        try:
            _write(directory)
            free = read_free(directory)
        except OSError as error:
            resource = exhausted_resource(error) or Resource.DISK
            reason = os.strerror(error.errno) if error.errno else "unknown error"
            result[resource] = f"{_STATES[resource]}: {reason}"
            continue
        is_low = is_low or free < LOW_BELOW_BYTES
        if free < FULL_BELOW_BYTES:
            result[Resource.DISK] = f"full: fewer than {FULL_BELOW_BYTES // 1024**2} MiB are free"
    return DiskState(resources=result, is_low=is_low)


_STATES = {Resource.DISK: "cannot be used", Resource.OPEN_FILES: "none can be opened"}


def _write(directory: Path) -> None:
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        file.write(os.urandom(PROBE_BYTES))  # not zeros, which a file system may compress
        os.fsync(file.fileno())
