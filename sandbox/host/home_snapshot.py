"""Save and restore HOME of a reserved sandbox from outside, without following links that leave it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from sandbox.snapshots import archive
from sandbox.workspaces.removal import remove_tree

MAX_BYTES = 16 * 1024**3
"""The most bytes of files in a snapshot; the snapshotter limits the packed size."""
CHUNK = 512 * 1024
ARCHIVE_ROOT = "home"


async def save(home: Path, scratch: Path) -> AsyncIterator[bytes]:
    """Pack HOME into an unnamed temporary file beside it and yield its content."""
    with tempfile.TemporaryFile(dir=scratch) as packed:
        await asyncio.to_thread(archive.pack, home, ARCHIVE_ROOT, packed, limit=MAX_BYTES)
        packed.seek(0)
        while chunk := await asyncio.to_thread(packed.read, CHUNK):
            yield chunk


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
