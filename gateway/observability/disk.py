"""Check that the disks that the process writes to take a write, and that files can be opened."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

from delivery.exhaustion import Resource, exhausted_resource

REUSE_SECONDS = 2.0
"""Seconds for which a result is reused, so that requests cannot cause many writes."""

PROBE_BYTES = 64 * 1024
FULL_BELOW_BYTES = 8 * 1024**2
"""Free bytes below which a disk counts as full: a transaction or a checkpoint may need more."""

LOW_BELOW_BYTES = 512 * 1024**2


class DiskProbe:
    """Writes a small file to each directory and deletes it; concurrent callers share one result."""

    def __init__(self, directories: Sequence[Path], *, clock: Callable[[], float] = monotonic) -> None:
        self._directories = directories
        self._clock = clock
        self._result: Mapping[Resource, str] = {}
        self._done_at = float("-inf")
        self._lock = asyncio.Lock()

    async def run(self) -> Mapping[Resource, str]:
        """Return "ok" or the problem of each resource; a result may be REUSE_SECONDS old."""
        async with self._lock:
            if self._clock() - self._done_at > REUSE_SECONDS:
                self._result = await asyncio.to_thread(_probe, self._directories)
                self._done_at = self._clock()
            return self._result

    def is_low(self) -> bool:
        """Return whether a disk has little space left."""
        return any(shutil.disk_usage(one).free < LOW_BELOW_BYTES for one in self._directories)


def _probe(directories: Sequence[Path]) -> Mapping[Resource, str]:
    result = dict.fromkeys(Resource, "ok")
    for directory in directories:
        try:
            _write(directory)
        except OSError as error:
            resource = exhausted_resource(error) or Resource.DISK
            result[resource] = f"{_STATES[resource]}: {os.strerror(error.errno or 0)}"
        else:
            if shutil.disk_usage(directory).free < FULL_BELOW_BYTES:
                result[Resource.DISK] = f"full: fewer than {FULL_BELOW_BYTES // 1024**2} MiB are free"
    return result


_STATES = {Resource.DISK: "cannot be written", Resource.OPEN_FILES: "none can be opened"}


def _write(directory: Path) -> None:
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        file.write(os.urandom(PROBE_BYTES))  # not zeros, which a file system may compress
        os.fsync(file.fileno())
