"""What lies in the `outbox/` of a workspace: looked at from outside where it is mounted, else from inside."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from delivery.database.clock import of_machine, utc_now
from sandbox.errors import Unsafe
from sandbox.model import Command
from sandbox.port import Sandbox
from sandbox.workspaces import local_files

OUTBOX = "outbox"
DEEPEST = 4
MOST_LOOKED_AT = 500
_LISTING = re.compile(r"^(\d+) (\d+) (outbox/.+)$")
LIST = r"""
[ -d outbox ] && [ ! -L outbox ] || exit 0
date +%s
find outbox -maxdepth 4 -type f ! -path '*/.*' -exec stat -c '%s %Z %n' {} + | head -n 500
"""
"""Names of one line each; a name with a line break in it is not found again and left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A file that somebody left: when it changed last, by the gateway's clock."""

    path: str
    size: int
    changed: datetime
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Yard:
    """Where to look: the sandbox, and the directory of the workspace if it is the mounted one."""

    sandbox: Callable[[], Awaitable[Sandbox]]
    directory: Path | None

    @property
    def slack(self) -> timedelta:
        """How far the clocks may differ: the kernel's ticks here, whole seconds and a journey elsewhere."""
        return timedelta(seconds=0.02 if self.directory is not None else 2.0)


async def look(yard: Yard) -> list[Left]:
    """Return the files in the outbox, by path; raises SandboxError, OSError."""
    if yard.directory is not None:
        return await asyncio.to_thread(lambda directory: sorted(_walk(directory), key=_path), yard.directory)
    sandbox = await yard.sandbox()
    asked = utc_now()
    result = await sandbox.run(Command(script=LIST, timeout=30.0, output_limit=256 * 1024))
    return sorted(parse(result.stdout, asked), key=_path)


def _path(left: Left) -> str:
    return left.path


def _walk(workspace: Path) -> Iterator[Left]:
    waiting, seen = [OUTBOX], 0
    while waiting and seen < MOST_LOOKED_AT:
        folder = waiting.pop(0)
        for entry in _entries(workspace, folder):
            seen += 1
            path = f"{folder}/{entry.name}"
            if entry.name.startswith(".") or not _is_text(path):
                continue
            if entry.kind == "directory" and path.count("/") < DEEPEST:
                waiting.append(path)
            if entry.kind == "file" and seen <= MOST_LOOKED_AT:
                changed = of_machine(datetime.fromtimestamp(entry.changed, UTC))
                yield _left(path, entry.size, changed, entry.changed)


def _entries(workspace: Path, folder: str) -> list[local_files.Entry]:
    try:
        return local_files.entries(workspace, folder)
    except (FileNotFoundError, NotADirectoryError, Unsafe):
        return []


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in path


def _left(path: str, size: int, changed: datetime, stamp: float) -> Left:
    return Left(path=path, size=size, changed=changed, version=f"{size}-{stamp:.6f}")


def parse(listing: bytes, asked: datetime) -> list[Left]:
    """Read what LIST wrote: the sandbox's own time, then a line for each file."""
    first, *lines = listing.decode("utf-8", "surrogateescape").splitlines() or [""]
    if not first.isdecimal():
        return []
    ahead = timedelta(seconds=int(first)) - timedelta(seconds=int(asked.timestamp()))
    found = []
    for line in lines:
        match = _LISTING.match(line)
        if match and _is_text(match[3]):
            stamp = float(match[2])
            found.append(_left(match[3], int(match[1]), datetime.fromtimestamp(stamp, UTC) - ahead, stamp))
    return found


class TooLarge(Exception):
    """The file has more bytes than are sent."""


async def read(yard: Yard, path: str, *, most: int) -> bytes:
    """Return a file's bytes; raises TooLarge, SandboxError, OSError."""
    content = await (await yard.sandbox()).read(path, limit=most + 1)
    if len(content) > most:
        raise TooLarge
    return content
