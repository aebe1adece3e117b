"""Store snapshots in a local directory."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sandbox.errors import ProviderRefused
from sandbox.snapshots.port import SnapshotNotFound, SnapshotStore


@contextmanager
def _translate_errors(done: str) -> Iterator[None]:
    """Translate the file system's errors."""
    try:
        yield
    except OSError as error:
        raise ProviderRefused(f"the snapshot cannot be {done}: {error}") from error


class LocalSnapshotStore(SnapshotStore):
    """Files below a directory; each is renamed to its name once it is complete and synced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def put(self, name: str, archive: Path) -> None:
        """Copy the file beside its final name, sync it, and rename it."""
        with _translate_errors("stored"):
            await asyncio.to_thread(self._put, name, archive)

    def _put(self, name: str, archive: Path) -> None:
        target = self._directory / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.part")
        with archive.open("rb") as source, fresh.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
        fresh.chmod(0o600)
        fresh.rename(target)

    async def get(self, name: str, into: Path) -> None:
        """Copy the file."""
        with _translate_errors("read"):
            try:
                await asyncio.to_thread(shutil.copyfile, self._directory / name, into)
            except FileNotFoundError as error:
                raise SnapshotNotFound(name) from error

    async def delete(self, name: str) -> None:
        """Remove the file, and its directory if it was the last one."""
        target = self._directory / name
        with _translate_errors("deleted"):
            await asyncio.to_thread(target.unlink, missing_ok=True)
            if target.parent.is_dir() and not any(target.parent.iterdir()):
                target.parent.rmdir()

    async def list(self, prefix: str = "") -> Sequence[str]:
        """List the files; incomplete ones are not listed."""
        found = (
            path.relative_to(self._directory).as_posix()
            for path in self._directory.glob("*/*")
            if not path.name.startswith(".")
        )
        return sorted(name for name in found if name.startswith(prefix))
