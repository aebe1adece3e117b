"""A workspace without a sandbox: its files as the workspace store has them, for reading alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from sandbox.errors import Unsupported
from sandbox.host import files
from sandbox.model import Command, Job, JobReport, Result, SandboxId
from sandbox.port import Sandbox

MOST_SEEN = 100_000
"""Names that are looked at for one pattern."""

NO_SANDBOX = "this workspace has no sandbox: its files can be read and found, and nothing runs"


class StoredFiles(Sandbox):
    """Reads from the directory of the workspace store, which may lag behind a sandbox elsewhere."""

    def __init__(self, directory: Path, mount: str) -> None:
        self.id = SandboxId("")
        self._directory = directory
        self._mount = mount

    async def run(self, command: Command) -> Result:
        """Refuse: nothing runs here."""
        del command
        raise Unsupported(NO_SANDBOX)

    async def spawn(self, job: Job) -> None:
        """Refuse: nothing runs here."""
        del job
        raise Unsupported(NO_SANDBOX)

    async def report(self, job_id: str) -> JobReport:
        """Refuse: nothing runs here."""
        del job_id
        raise Unsupported(NO_SANDBOX)

    async def stop(self, job_id: str) -> None:
        """Do nothing: nothing runs here."""

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a file, kept inside by the kernel."""
        plain = files.relative(path, self._mount)
        return await asyncio.to_thread(files.read, self._directory, plain, limit)

    async def write(self, path: str, content: bytes) -> None:
        """Refuse."""
        del content
        raise PermissionError(f"{path}: {NO_SANDBOX}")

    async def suspend(self) -> None:
        """Refuse: there is nothing to put to sleep."""
        raise Unsupported(NO_SANDBOX)

    async def newest(self, place: str, pattern: str, *, most: int) -> list[str]:
        """Return the files below a directory that match a pattern, the newest first, no link followed."""
        return await asyncio.to_thread(self._newest, place, pattern, most)

    def _newest(self, place: str, pattern: str, most: int) -> list[str]:
        root = self._directory / files.relative(place, self._mount)
        matches = [name for name in _below(root) if _fits(name, pattern)]
        dated = sorted(matches, key=lambda name: (-(root / name).lstat().st_mtime, name))
        return dated[:most]


def _below(root: Path) -> Iterator[str]:
    seen = 0
    for directory, _directories, names in os.walk(root, followlinks=False):
        for name in names:
            seen += 1
            if seen > MOST_SEEN:
                return
            path = Path(directory) / name
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(root))


def _fits(name: str, pattern: str) -> bool:
    """Match as bash does with globstar: `**` is any number of directories, `*` stays in one."""
    return _match(name.split("/"), pattern.split("/"))


def _match(parts: list[str], wanted: list[str]) -> bool:
    from fnmatch import fnmatchcase

    if not wanted:
        return not parts
    if wanted[0] == "**":
        if len(wanted) == 1:
            return bool(parts)
        return any(_match(parts[skipped:], wanted[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and _match(parts[1:], wanted[1:])
