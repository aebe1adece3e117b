"""A workspace without a sandbox: its files are read from the workspace store."""

from __future__ import annotations

import asyncio

from gateway.environments.glob_pattern import GlobPattern
from sandbox.errors import FeatureUnsupported
from sandbox.model import BackgroundJob, ExecRequest, ExecResult, JobReport, SandboxId
from sandbox.paths import relative_path
from sandbox.port import Sandbox
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.sync_plan import regular_files

NO_SANDBOX = "this workspace has no sandbox: you can read and find its files, but not run commands"

_NAMES_PER_STEP = 500
"""Names that are matched before other tasks run."""


class StoredWorkspace(Sandbox):
    """Read-only access to a workspace in the store, which may be older than the files in a remote sandbox."""

    def __init__(self, store: WorkspaceStore, namespace: str, mount: str) -> None:
        self.id = SandboxId("")
        self._store = store
        self._namespace = namespace
        self._mount = mount

    async def run(self, command: ExecRequest) -> ExecResult:
        """Raise FeatureUnsupported."""
        del command
        raise FeatureUnsupported(NO_SANDBOX)

    async def spawn(self, job: BackgroundJob) -> None:
        """Raise FeatureUnsupported."""
        del job
        raise FeatureUnsupported(NO_SANDBOX)

    async def report(self, job_id: str) -> JobReport:
        """Raise FeatureUnsupported."""
        del job_id
        raise FeatureUnsupported(NO_SANDBOX)

    async def stop(self, job_id: str) -> None:
        """Do nothing: no job can run here."""

    async def read(self, path: str, *, limit: int) -> bytes:
        """Return a file's content; raises UnsafePath for a path that leaves the workspace."""
        return await self._store.read(self._namespace, relative_path(path, self._mount), limit)

    async def write(self, path: str, content: bytes) -> None:
        """Raise PermissionError."""
        del content
        raise PermissionError(f"{path}: {NO_SANDBOX}")

    async def suspend(self) -> None:
        """Raise FeatureUnsupported."""
        raise FeatureUnsupported(NO_SANDBOX)

    async def list_newest(self, directory: str, pattern: str, *, limit: int) -> list[str]:
        """Return the files below a directory that match a pattern, the newest first; links are not followed.

        Raises ValueError for a pattern that is too long (see `GlobPattern`).
        """
        glob = GlobPattern(pattern)
        relative = relative_path(directory, self._mount)
        prefix = "" if relative == "." else f"{relative}/"
        files = regular_files(await self._store.replica(self._namespace).list())
        modified: dict[str, int] = {}
        for number, (path, stat) in enumerate(files.items(), 1):
            name = path.removeprefix(prefix)
            if path.startswith(prefix) and glob.matches(name):
                modified[name] = stat.modified
            if number % _NAMES_PER_STEP == 0:
                await asyncio.sleep(0)
        return sorted(modified, key=lambda name: (-modified[name], name))[:limit]
