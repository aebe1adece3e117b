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

ANSWER_SECONDS = 3.0
"""Seconds to wait for disks and database: less than the time-out of a usual probe, which is 5."""

PROBE_BYTES = 64 * 1024
FULL_BELOW_BYTES = 8 * 1024**2
"""Free bytes below which a disk counts as full: a transaction or a checkpoint may need more."""

LOW_BELOW_BYTES = 512 * 1024**2

ReadFree = Callable[[Path], int]


def read_free_bytes(directory: Path) -> int:
    """Return the free bytes of a directory's disk; raises OSError."""
    return shutil.disk_usage(directory).free


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskState:
    """Whether disks take writes and files can be opened, and whether little space is left.

    Each of `resources` is "ok" or the problem. `concern` is the problem of a directory on a disk of its own.
    """

    resources: Mapping[Resource, str]
    is_low: bool
    concern: str = ""


class DiskProbe:
    """Writes a small file to each directory and deletes it; concurrent callers share one result.

    A mount may not return from a call at all: there is one attempt at a time, which nobody waits for longer
    than `answer_seconds`. `read_free` returns the free bytes of a directory's disk, or raises OSError.
    `list_further` returns directories on disks of their own, without which only a part of the work waits.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        answer_seconds: float = ANSWER_SECONDS,
        clock: Callable[[], float] = monotonic,
        read_free: ReadFree = read_free_bytes,
        list_further: Callable[[], Sequence[Path]] = tuple,
    ) -> None:
        self._directories = directories
        self._list_further = list_further
        self._answer_seconds = answer_seconds
        self._clock = clock
        self._read_free = read_free
        self._result = DiskState(resources={}, is_low=False)
        self._done_at = float("-inf")
        self._attempt: asyncio.Future[DiskState] | None = None

    async def run(self) -> DiskState:
        """Return the state of the disks and files; it may be REUSE_SECONDS old."""
        if self._attempt is None and self._clock() - self._done_at <= REUSE_SECONDS:
            return self._result
        attempt = self._attempt or self._begin()
        done, _ = await asyncio.wait({attempt}, timeout=self._answer_seconds)
        if done:
            return attempt.result()
        unanswered = f"does not answer within {self._answer_seconds:g} s"
        return DiskState(resources={**_OK, Resource.DISK: unanswered}, is_low=False)

    def _begin(self) -> asyncio.Future[DiskState]:
        loop = asyncio.get_running_loop()
        self._attempt = loop.run_in_executor(None, self._probe)
        self._attempt.add_done_callback(self._end)
        return self._attempt

    def _end(self, attempt: asyncio.Future[DiskState]) -> None:
        self._attempt, self._done_at = None, self._clock()
        if not (attempt.cancelled() or attempt.exception()):
            self._result = attempt.result()

    def _probe(self) -> DiskState:
        result = dict(_OK)
        is_low = False
        for directory in self._directories:
            found = probe_directory(directory, self._read_free)
            result |= found.problems
            is_low = is_low or found.is_low
        further = {one.name: probe_directory(one, self._read_free).problems for one in self._list_further()}
        concerns = (f"{name}: {one[Resource.DISK]}" for name, one in further.items() if Resource.DISK in one)
        return DiskState(resources=result, is_low=is_low, concern="; ".join(concerns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What is wrong with a directory, by resource, and whether little space is left."""

    problems: Mapping[Resource, str]
    is_low: bool = False


def probe_directory(directory: Path, read_free: ReadFree = read_free_bytes) -> Probed:
    """Write a small file to a directory and delete it, and return what is wrong."""
    try:
        _write(directory)
        free = read_free(directory)
    except OSError as error:
        files = exhausted_resource(error) is Resource.OPEN_FILES
        resource = Resource.OPEN_FILES if files else Resource.DISK
        reason = os.strerror(error.errno) if error.errno else "unknown error"
        return Probed(problems={resource: f"{_STATES[resource]}: {reason}"})
    full = f"full: fewer than {FULL_BELOW_BYTES // 1024**2} MiB are free"
    problems = {Resource.DISK: full} if free < FULL_BELOW_BYTES else {}
    return Probed(problems=problems, is_low=free < LOW_BELOW_BYTES)


_STATES = {Resource.DISK: "cannot be used", Resource.OPEN_FILES: "none can be opened"}
_OK = dict.fromkeys(_STATES, "ok")


def _write(directory: Path) -> None:
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        file.write(os.urandom(PROBE_BYTES))  # not zeros, which a file system may compress
        os.fsync(file.fileno())
