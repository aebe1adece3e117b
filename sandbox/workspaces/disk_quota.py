"""Limit the size of a local workspace: it is measured around commands and regularly during them.

Blocks are counted, so a hole costs nothing. A workspace that is already full may be used as long as it does
not grow, because removing files must remain possible.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox.errors import ProviderRefused
from sandbox.model import ExecResult, SandboxSpec
from sandbox.workspaces.bounded_walk import DirectoryMoved, statuses

CHECK_INTERVAL_SECONDS = 2.0
"""Seconds between two measurements during a command."""

MAX_NAMES = 1_000_000
"""The most names that are counted; a workspace with more of them counts as full.

So does one whose directories are moved whenever it is measured, because each measurement starts anew then.
"""

KILLED = 137
_BLOCK = 512
_GIGABYTE = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The most bytes of a workspace's directory."""

    directory: Path
    limit: int

    def used(self) -> int:
        """Return the bytes that the directory's files take on the disk."""
        names = 0
        while True:
            total = 0
            try:
                for size in _sizes(self.directory):
                    total += size
                    names += 1
                    if names > MAX_NAMES:
                        return max(total, self.limit + 1)
            except DirectoryMoved:  # what it held would not be counted
                continue
            return total

    def check_fits(self, path: str, size: int) -> None:
        """Raise ProviderRefused if a file of so many bytes exceeds the quota."""
        used = self.used()
        if used + size > self.limit:
            raise ProviderRefused(f"{path}: {self.quota_message(used)}")

    def quota_message(self, used: int) -> str:
        """Return the error message with its remedy."""
        return f"the workspace holds {used} bytes and may hold {self.limit}: remove files before writing more"


def quota_of(spec: SandboxSpec, default: int | None) -> Quota | None:
    """Return a workspace's quota: the record's diskGb, or the operator's default; None means unlimited."""
    wanted = spec.options.get("disk_gb")
    limit = int(float(wanted) * _GIGABYTE) if wanted is not None else default
    if limit is None or spec.workspace is None or spec.read_only:
        return None
    return Quota(directory=spec.workspace, limit=limit)


async def is_over_quota(quota: Quota | None) -> bool:
    """Return whether a workspace exceeds its quota."""
    return quota is not None and await asyncio.to_thread(quota.used) > quota.limit


async def run_with_quota(quota: Quota | None, run: Callable[[], Awaitable[ExecResult]]) -> ExecResult:
    """Run a command; kill it if the workspace exceeds its quota, with a message in stderr."""
    if quota is None:
        return await run()
    allowed = max(quota.limit, await asyncio.to_thread(quota.used))
    running = asyncio.ensure_future(run())
    try:
        while not (await asyncio.wait({running}, timeout=CHECK_INTERVAL_SECONDS))[0]:
            if (used := await asyncio.to_thread(quota.used)) > allowed:
                return await _kill_over_quota(running, quota, used)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
    result = running.result()
    used = await asyncio.to_thread(quota.used)
    return _with_note(result, quota.quota_message(used)) if used > quota.limit else result


async def _kill_over_quota(running: asyncio.Future[ExecResult], quota: Quota, used: int) -> ExecResult:
    """Kill the command with its processes; one that has just ended by itself keeps its result."""
    running.cancel()
    await asyncio.wait({running})
    if running.cancelled():
        result = ExecResult(exit_code=KILLED, stdout=b"", stderr=b"the command was ended, its output is lost")
    else:
        result = running.result()
    return _with_note(result, quota.quota_message(used))


def _with_note(result: ExecResult, note: str) -> ExecResult:
    gap = b"\n" if result.stderr and not result.stderr.endswith(b"\n") else b""
    return replace(result, stderr=result.stderr + gap + note.encode() + b"\n")


def _sizes(directory: Path) -> Iterator[int]:
    """Yield the size on disk of each name, a file with several names once; links are not followed."""
    seen: set[tuple[int, int]] = set()
    for status in statuses(directory):
        if status.st_nlink == 1 or (status.st_dev, status.st_ino) not in seen:
            yield status.st_blocks * _BLOCK
        if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
            seen.add((status.st_dev, status.st_ino))
