"""Save and restore HOME of a reserved sandbox from outside, without following links that leave it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from sandbox.snapshots import archive
from sandbox.workspaces.bounded_walk import walk
from sandbox.workspaces.removal import remove_tree

MAX_BYTES = 16 * 1024**3
"""The most bytes of files in a snapshot; the snapshotter limits the packed size."""
RECENT_NANOSECONDS = 50_000_000
"""More than a tick of the kernel's clock."""
CHUNK = 512 * 1024
ARCHIVE_ROOT = "home"


async def save(home: Path, scratch: Path) -> AsyncIterator[bytes]:
    """Pack HOME into an unnamed temporary file beside it and yield its content."""
    with tempfile.TemporaryFile(dir=scratch) as packed:
        await asyncio.to_thread(archive.pack, home, ARCHIVE_ROOT, packed, limit=MAX_BYTES)
        packed.seek(0)
        while chunk := await asyncio.to_thread(packed.read, CHUNK):
            yield chunk


def stamp(home: Path) -> str | None:
    """Return a digest of the names, sizes, modes and times of all files; None if one was changed just now.

    A change within the same tick of the kernel's clock would leave the times as they are.
    """
    found, newest = hashlib.sha256(), 0
    for parent, names, files, descriptor in walk(home):
        names.sort()
        found.update(os.fsencode(parent) + b"\0")
        for name in sorted([*names, *files]):
            try:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:
                continue
            newest = max(newest, status.st_ctime_ns)
            values = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            found.update(b"%s\0%s\0" % (os.fsencode(name), str(values).encode()))
    return found.hexdigest() if newest < time.time_ns() - RECENT_NANOSECONDS else None


async def restore(chunks: AsyncIterator[bytes], home: Path, scratch: Path) -> None:
    """Unpack into a directory that no command can see, then replace HOME with it."""
    fresh = Path(tempfile.mkdtemp(dir=scratch, prefix="restoring-"))
    try:
        packed = fresh / "snapshot"
        with packed.open("wb") as file:
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
        inside = fresh / ARCHIVE_ROOT
        inside.mkdir(mode=0o700)
        await asyncio.to_thread(archive.unpack, packed, inside, top=ARCHIVE_ROOT, limit=MAX_BYTES)
        await asyncio.to_thread(_exchange, inside, home, fresh / "before")
    finally:
        with suppress(OSError):
            await asyncio.to_thread(remove_tree, fresh)


def _exchange(fresh: Path, home: Path, before: Path) -> None:
    if home.exists():
        home.rename(before)
    fresh.rename(home)
