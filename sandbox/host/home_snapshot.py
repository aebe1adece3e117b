"""Saving HOME of a reserved sandbox and putting it back, from outside and never led out by what is in it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from sandbox.snapshots import archive

MOST = 16 * 1024**3
"""Bytes of files that a snapshot may hold; what it may take packed is the keeper's to say."""
CHUNK = 512 * 1024
TOP = "home"


async def save(home: Path, beside: Path) -> AsyncIterator[bytes]:
    """Pack HOME into a file beside it that has no name any more, and yield that."""
    with tempfile.TemporaryFile(dir=beside) as packed:
        await asyncio.to_thread(archive.pack, home, TOP, packed, limit=MOST)
        packed.seek(0)
        while chunk := await asyncio.to_thread(packed.read, CHUNK):
            yield chunk


async def restore(chunks: AsyncIterator[bytes], home: Path, beside: Path) -> None:
    """Unpack into a directory that no command can see, and then let it take HOME's place."""
    fresh = Path(tempfile.mkdtemp(dir=beside, prefix="restoring-"))
    try:
        packed = fresh / "snapshot"
        with packed.open("wb") as file:
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
        inside = fresh / TOP
        inside.mkdir(mode=0o700)
        await asyncio.to_thread(archive.unpack, packed, inside, top=TOP, limit=MOST)
        await asyncio.to_thread(_exchange, inside, home, fresh / "before")
    finally:
        await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)


def _exchange(fresh: Path, home: Path, before: Path) -> None:
    if home.exists():
        home.rename(before)
    fresh.rename(home)
