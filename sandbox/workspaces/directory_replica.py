"""A workspace's directory on this machine, which commands of a sandbox may be changing right now."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import posixpath
import re
import stat
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from sandbox.errors import Refused, SandboxError
from sandbox.workspaces import local_files, sandbox_transfer
from sandbox.workspaces.replica import File, Side
from sandbox.workspaces.sync_plan import Listing, Seen

FRESH = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""What a file is called that `sandbox.workspaces.local_files` is writing just now."""
_LARGEST = 1 << 40


class Folder(Side):
    """The regular files below a directory; no link leads out of it.

    `durable`: each file that is taken survives a power failure at once, else when all are settled.
    """

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self._directory = directory
        self._durable = durable

    async def listing(self) -> Listing:
        """Return what stands below the directory; raises OSError when it is not there."""
        return await asyncio.to_thread(self._listing)

    def _listing(self) -> Listing:
        self._directory.stat()
        found: dict[str, Seen] = {}
        for path, seen in _listed(self._directory):
            found[path] = seen
            if len(found) > sandbox_transfer.MOST_NAMES:
                raise Refused(f"the workspace holds more than {sandbox_transfer.MOST_NAMES} files")
        return found

    async def contents(self, wanted: Listing) -> AsyncIterator[File]:
        """Read the wanted files one by one; what is gone or grew meanwhile is seen again next time."""
        for path, seen in wanted.items():
            try:
                content = await asyncio.to_thread(local_files.read, self._directory, path, seen.size + 1)
            except (OSError, SandboxError):
                continue
            if len(content) <= seen.size:
                yield path, content, seen

    async def take(self, given: AsyncIterator[File]) -> Listing:
        """Write files with their times and programs' bits; a directory or a link may be in the way of one."""
        written = [path async for path, content, seen in given if await self._is_written(path, content, seen)]
        now = await self.listing() if written else {}
        return {path: now[path] for path in written if path in now}

    async def _is_written(self, path: str, content: bytes, seen: Seen) -> bool:
        try:
            await asyncio.to_thread(
                local_files.write,
                self._directory,
                path,
                content,
                mode=seen.mode | 0o600,
                modified=seen.modified,
                durable=self._durable,
            )
        except (OSError, SandboxError):
            return False
        return True

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files, and the directories that are empty then."""
        await asyncio.to_thread(self._remove, paths)

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                local_files.remove(self._directory, path)
                self._prune(path)
            except (OSError, SandboxError):
                continue

    def _prune(self, path: str) -> None:
        while path := posixpath.dirname(path):
            if local_files.entries(self._directory, path):
                return
            local_files.remove(self._directory, path)

    async def settle(self) -> None:
        """Bring what was taken, and what commands wrote, to the disk in one go."""
        if not self._durable:
            await asyncio.to_thread(_synced, self._directory)

    async def digests(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Return the MD5 of the files that can be read."""
        return await asyncio.to_thread(lambda: dict(self._digests(paths)))

    def _digests(self, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
        for path in paths:
            try:
                content = local_files.read(self._directory, path, _LARGEST)
            except (OSError, SandboxError):
                continue
            yield path, hashlib.md5(content, usedforsecurity=False).hexdigest()


def _synced(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)


def _listed(directory: Path) -> Iterator[tuple[str, Seen]]:
    for parent, names, plain, descriptor in os.fwalk(directory, follow_symlinks=False):
        if sandbox_transfer.STAGE in names:
            names.remove(sandbox_transfer.STAGE)
        below = Path(parent).relative_to(directory)
        for name in plain:
            if FRESH.fullmatch(name):
                continue
            path, seen = (below / name).as_posix(), _seen(descriptor, name)
            if seen is not None and sandbox_transfer.is_plain(path) and _is_text(path):
                yield path, seen


def _is_text(path: str) -> bool:
    """Whether a name is UTF-8, so that tools and HTTP can name it."""
    return not any("\udc80" <= letter <= "\udcff" for letter in path)


def _seen(parent: int, name: str) -> Seen | None:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Seen(status.st_size, status.st_mtime_ns, status.st_mode & 0o755)
