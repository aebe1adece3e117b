"""A replica in a local directory, which commands of a sandbox may be changing at the same time."""

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

from sandbox.errors import ProviderRefused, SandboxError
from sandbox.workspaces import local_entries, local_files, sandbox_transfer
from sandbox.workspaces.bounded_walk import walk
from sandbox.workspaces.replica import Replica, ReplicaFile
from sandbox.workspaces.sync_plan import EMPTY_DIRECTORY, FileListing, FileStat

TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""The pattern of temporary files that `sandbox.workspaces.local_files` is writing."""
_MAX_BYTES = 1 << 40


class DirectoryReplica(Replica):
    """The files below a directory. Links are read and written as links and never followed.

    With `durable` each written file is synced to disk at once, otherwise all of them by `flush`.
    """

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self._directory = directory
        self._durable = durable

    async def list(self) -> FileListing:
        """Return the files, links and empty directories; raises OSError if the directory does not exist."""
        return await asyncio.to_thread(self._list)

    def _list(self) -> FileListing:
        self._directory.stat()
        found: dict[str, FileStat] = {}
        for path, seen in _walk(self._directory):
            found[path] = seen
            if len(found) > sandbox_transfer.MAX_NAMES:
                raise ProviderRefused(f"the workspace holds more than {sandbox_transfer.MAX_NAMES} files")
        return found

    async def read(self, listing: FileListing) -> AsyncIterator[ReplicaFile]:
        """Read the wanted files one by one; files that vanished or grew are synced the next time."""
        for path, seen in listing.items():
            try:
                content = await asyncio.to_thread(local_entries.read, self._directory, path, seen)
            except (OSError, SandboxError):
                continue
            if len(content) <= seen.size:
                yield path, content, seen

    async def write(self, source: AsyncIterator[ReplicaFile]) -> FileListing:
        """Write files with their times and executable bits, links, and empty directories."""
        written = [path async for path, content, seen in source if await self._try_write(path, content, seen)]
        now = await self.list() if written else {}
        return {path: now[path] for path in written if path in now}

    async def _try_write(self, path: str, content: bytes, seen: FileStat) -> bool:
        try:
            await asyncio.to_thread(
                local_entries.write, self._directory, path, content, seen, durable=self._durable
            )
        except (OSError, SandboxError):
            return False
        return True

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files and empty directories, and directories that become empty."""
        await asyncio.to_thread(self._remove, paths)

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                local_entries.remove(self._directory, path)
                self._remove_empty_parents(path)
            except (OSError, SandboxError):
                continue

    def _remove_empty_parents(self, path: str) -> None:
        while path := posixpath.dirname(path):
            if local_files.list_directory(self._directory, path):
                return
            local_files.remove(self._directory, path)

    async def flush(self) -> None:
        """Sync the written files, and those that commands wrote, to disk at once."""
        if not self._durable:
            await asyncio.to_thread(_sync_file_system, self._directory)

    async def hash(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Return the MD5 of the regular files that can be read."""
        return await asyncio.to_thread(lambda: dict(self._hash(paths)))

    def _hash(self, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
        for path in paths:
            try:
                content = local_files.read(self._directory, path, _MAX_BYTES)
            except (OSError, SandboxError):
                continue
            yield path, hashlib.md5(content, usedforsecurity=False).hexdigest()


def _sync_file_system(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)


def _walk(directory: Path) -> Iterator[tuple[str, FileStat]]:
    for parent, names, plain, descriptor in walk(directory):
        names[:] = [name for name in names if not _is_ours(name)]
        below = Path(parent).relative_to(directory)
        if not names and not plain and _can_be_named(path := below.as_posix()):
            yield path, EMPTY_DIRECTORY
        for name in (*names, *plain):  # a link to a directory is among the directories
            if TEMPORARY_NAME.fullmatch(name):
                continue
            path, seen = (below / name).as_posix(), _stat(descriptor, name)
            if seen is not None and _can_be_named(path):
                yield path, seen


def _can_be_named(path: str) -> bool:
    return path != "." and sandbox_transfer.is_plain_path(path) and _is_utf8(path)


def _is_ours(name: str) -> bool:
    """Return whether a directory exists only while files are transferred or copied."""
    return name == sandbox_transfer.STAGING_DIRECTORY or TEMPORARY_NAME.fullmatch(name) is not None


def _is_utf8(path: str) -> bool:
    """Return whether a name is UTF-8, so that tools and HTTP can name it."""
    return not any("\udc80" <= letter <= "\udcff" for letter in path)


def _stat(parent: int, name: str) -> FileStat | None:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return FileStat(status.st_size, status.st_mtime_ns, stat.S_IFLNK)
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileStat(status.st_size, status.st_mtime_ns, status.st_mode & 0o755)
