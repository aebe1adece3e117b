"""Files in the `outbox/` of a workspace, listed on the host if it is mounted, else inside the sandbox."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from delivery.database.clock import from_machine_time, utc_now
from sandbox.errors import UnsafePath
from sandbox.exec import open_files
from sandbox.model import ExecRequest
from sandbox.paths import file_time
from sandbox.port import Sandbox
from sandbox.workspaces import local_files

OUTBOX = "outbox"
MAX_DEPTH = 4
MAX_ENTRIES = 500
_LISTING = re.compile(r"([0-9]{1,18}) (-?[0-9]{1,18})(?:\.[0-9]*)? (outbox/.+)", re.DOTALL)
_CLOCK = re.compile(r"[0-9]{1,11}")
LIST_SCRIPT = r"""
[ -d outbox ] && [ ! -L outbox ] || exit 0
printf '%s\0' "$(date +%s)"
find outbox -maxdepth 4 -type f ! -path '*/.*' -printf '%s %C@ %p\0' | head -z -n 500
"""
"""Each record ends with NUL, the one character that no name has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxFile:
    """A file in the outbox; `changed_at` is by the gateway's clock.

    If its path is not UTF-8, `path` shows it with replacement characters, and the file cannot be read.
    """

    path: str
    is_utf8: bool
    size: int
    changed_at: datetime
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxLocation:
    """The location of an outbox: the sandbox, and the workspace's directory if it is mounted."""

    sandbox: Callable[[], Awaitable[Sandbox]]
    directory: Path | None

    @property
    def clock_tolerance(self) -> timedelta:
        """Return how far the clocks may differ: a kernel tick on this host, 2 s in other sandboxes."""
        return timedelta(seconds=0.02 if self.directory is not None else 2.0)


async def list_files(location: OutboxLocation) -> list[OutboxFile]:
    """Return the files in the outbox, by path; raises SandboxError, OSError."""
    if location.directory is not None:
        if not _has_outbox(location.directory):
            return []
        return await asyncio.to_thread(
            lambda directory: sorted(_walk(directory), key=_path), location.directory
        )
    sandbox = await location.sandbox()
    requested_at = utc_now()
    result = await sandbox.run(ExecRequest(script=LIST_SCRIPT, timeout=30.0, output_limit=256 * 1024))
    return sorted(parse_listing(result.stdout, requested_at), key=_path)


def _has_outbox(workspace: Path) -> bool:
    """Return whether there is an outbox: most workspaces have none, and a thread takes longer to ask."""
    return os.path.lexists(workspace / OUTBOX)


def _path(file: OutboxFile) -> str:
    return file.path


def _walk(workspace: Path) -> Iterator[OutboxFile]:
    waiting, seen = [OUTBOX], 0
    while waiting and seen < MAX_ENTRIES:
        folder = waiting.pop(0)
        for entry in _entries(workspace, folder):
            seen += 1
            path = f"{folder}/{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.kind == "directory" and path.count("/") < MAX_DEPTH:
                waiting.append(path)
            if entry.kind == "file" and seen <= MAX_ENTRIES:
                changed = from_machine_time(entry.changed_at)
                yield _outbox_file(path, entry.size, changed, entry.changed)


def _entries(workspace: Path, folder: str) -> list[local_files.FileEntry]:
    try:
        return local_files.list_directory(workspace, folder)
    except (FileNotFoundError, NotADirectoryError, UnsafePath):
        return []


def _outbox_file(path: str, size: int, changed_at: datetime, stamp: float) -> OutboxFile:
    shown = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return OutboxFile(
        path=shown,
        is_utf8=shown == path,
        size=size,
        changed_at=changed_at,
        version=f"{size}-{stamp:.6f}",
    )


def parse_listing(listing: bytes, requested_at: datetime) -> list[OutboxFile]:
    """Parse the output of LIST_SCRIPT: the sandbox's time, then one record per file."""
    first, *records = listing.decode("utf-8", "surrogateescape").split("\0")[:-1] or [""]
    if not _CLOCK.fullmatch(first):
        return []
    ahead = timedelta(seconds=int(first)) - timedelta(seconds=int(requested_at.timestamp()))
    files = []
    for record in records:
        match = _LISTING.fullmatch(record)
        if match:
            stamp = float(match[2])
            files.append(_outbox_file(match[3], int(match[1]), file_time(stamp) - ahead, stamp))
    return files


async def find_open(location: OutboxLocation, paths: Collection[str]) -> Mapping[str, bool | None]:
    """Return for each file whether a process has it open for writing; None where that cannot be told.

    On a mounted workspace the kernel of this machine is asked, else the processes of the sandbox are looked
    at. Raises SandboxError.
    """
    if location.directory is None:
        return await open_files.find_open(await location.sandbox(), paths)
    return await asyncio.to_thread(_find_open, location.directory, paths)


def _find_open(workspace: Path, paths: Collection[str]) -> Mapping[str, bool | None]:
    found: dict[str, bool | None] = {}
    for path in paths:
        try:
            found[path] = local_files.is_open_for_writing(workspace, path)
        except (OSError, UnsafePath):
            found[path] = None  # it was deleted or replaced: the collector finds out
    return found


class FileTooLarge(Exception):
    """The file is larger than the limit."""


async def read(location: OutboxLocation, path: str, *, limit: int) -> bytes:
    """Return a file's bytes; raises FileTooLarge, SandboxError, OSError."""
    content = await (await location.sandbox()).read(path, limit=limit + 1)
    if len(content) > limit:
        raise FileTooLarge
    return content
