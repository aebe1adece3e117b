"""A workspace without a sandbox: its files as the workspace store has them, for reading alone."""

from __future__ import annotations

from sandbox.errors import FeatureUnsupported
from sandbox.model import BackgroundJob, ExecRequest, ExecResult, JobReport, SandboxId
from sandbox.paths import relative_path
from sandbox.port import Sandbox
from sandbox.workspaces.port import WorkspaceStore

NO_SANDBOX = "this workspace has no sandbox: its files can be read and found, and nothing runs"


class StoredWorkspace(Sandbox):
    """Reads from the workspace store, which may lag behind a sandbox elsewhere."""

    def __init__(self, store: WorkspaceStore, namespace: str, mount: str) -> None:
        self.id = SandboxId("")
        self._store = store
        self._namespace = namespace
        self._mount = mount

    async def run(self, command: ExecRequest) -> ExecResult:
        """Refuse: nothing runs here."""
        del command
        raise FeatureUnsupported(NO_SANDBOX)

    async def spawn(self, job: BackgroundJob) -> None:
        """Refuse: nothing runs here."""
        del job
        raise FeatureUnsupported(NO_SANDBOX)

    async def report(self, job_id: str) -> JobReport:
        """Refuse: nothing runs here."""
        del job_id
        raise FeatureUnsupported(NO_SANDBOX)

    async def stop(self, job_id: str) -> None:
        """Do nothing: nothing runs here."""

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a file, kept inside by the store."""
        return await self._store.read(self._namespace, relative_path(path, self._mount), limit)

    async def write(self, path: str, content: bytes) -> None:
        """Refuse."""
        del content
        raise PermissionError(f"{path}: {NO_SANDBOX}")

    async def suspend(self) -> None:
        """Refuse: there is nothing to put to sleep."""
        raise FeatureUnsupported(NO_SANDBOX)

    async def list_newest(self, directory: str, pattern: str, *, limit: int) -> list[str]:
        """Return the files below a directory that match a pattern, the newest first, no link followed."""
        plain = relative_path(directory, self._mount)
        below = "" if plain == "." else f"{plain}/"
        found = await self._store.replica(self._namespace).list()
        names = {path.removeprefix(below): seen for path, seen in found.items() if path.startswith(below)}
        matches = [name for name in names if _matches(name, pattern)]
        return sorted(matches, key=lambda name: (-names[name].modified, name))[:limit]


def _matches(name: str, pattern: str) -> bool:
    """Match as bash does with globstar: `**` is any number of directories, `*` stays in one."""
    return _match_parts(name.split("/"), pattern.split("/"))


def _match_parts(parts: list[str], pattern: list[str]) -> bool:
    from fnmatch import fnmatchcase

    if not pattern:
        return not parts
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(parts)
        return any(_match_parts(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _match_parts(parts[1:], pattern[1:])
