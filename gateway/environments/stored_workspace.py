"""A workspace without a sandbox: its files as the workspace store has them, for reading alone."""

from __future__ import annotations

from sandbox.errors import Unsupported
from sandbox.model import Command, Job, JobReport, Result, SandboxId
from sandbox.paths import relative
from sandbox.port import Sandbox
from sandbox.workspaces.port import Store

NO_SANDBOX = "this workspace has no sandbox: its files can be read and found, and nothing runs"


class StoredFiles(Sandbox):
    """Reads from the workspace store, which may lag behind a sandbox elsewhere."""

    def __init__(self, store: Store, namespace: str, mount: str) -> None:
        self.id = SandboxId("")
        self._store = store
        self._namespace = namespace
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
        """Read a file, kept inside by the store."""
        return await self._store.read(self._namespace, relative(path, self._mount), limit)

    async def write(self, path: str, content: bytes) -> None:
        """Refuse."""
        del content
        raise PermissionError(f"{path}: {NO_SANDBOX}")

    async def suspend(self) -> None:
        """Refuse: there is nothing to put to sleep."""
        raise Unsupported(NO_SANDBOX)

    async def newest(self, place: str, pattern: str, *, most: int) -> list[str]:
        """Return the files below a directory that match a pattern, the newest first, no link followed."""
        plain = relative(place, self._mount)
        below = "" if plain == "." else f"{plain}/"
        found = await self._store.side(self._namespace).listing()
        names = {path.removeprefix(below): seen for path, seen in found.items() if path.startswith(below)}
        matches = [name for name in names if _fits(name, pattern)]
        return sorted(matches, key=lambda name: (-names[name].modified, name))[:most]


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
