"""Store workspaces as local directories, which providers on this host mount."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sandbox.paths import FileEntry
from sandbox.workspaces import local_files, local_tree
from sandbox.workspaces.directory_replica import DirectoryReplica
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.removal import remove_tree
from sandbox.workspaces.replica import Replica

Returned = TypeVar("Returned")


class DirectoryWorkspaceStore(WorkspaceStore):
    """One directory per namespace, created on first use; the kernel keeps paths inside."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def directory(self, namespace: str) -> Path:
        """Return a workspace's directory."""
        path = self._root / namespace
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    async def list_directory(self, namespace: str, path: str) -> Sequence[FileEntry]:
        """List a directory."""
        return await self._run_in_thread(local_files.list_directory, namespace, path)

    async def read(self, namespace: str, path: str, limit: int) -> bytes:
        """Read a file."""
        return await self._run_in_thread(local_files.read, namespace, path, limit)

    async def write(self, namespace: str, path: str, content: bytes) -> None:
        """Write a file durably; its parent directories are created."""
        await self._run_in_thread(local_files.write, namespace, path, content)

    async def remove(self, namespace: str, path: str) -> None:
        """Remove a file or a directory."""
        await self._run_in_thread(local_files.remove, namespace, path)

    async def stat(self, namespace: str, path: str) -> FileEntry:
        """Describe a path."""
        return await self._run_in_thread(local_tree.describe, namespace, path)

    async def mkdir(self, namespace: str, path: str) -> None:
        """Create a directory durably."""
        await self._run_in_thread(local_tree.make_directory, namespace, path)

    async def rename(self, namespace: str, path: str, target: str) -> None:
        """Rename within the file system."""
        await self._run_in_thread(local_tree.rename, namespace, path, target)

    async def copy(self, namespace: str, path: str, target: str) -> None:
        """Copy files, links and directories; the copy appears when it is complete."""
        await self._run_in_thread(local_tree.copy, namespace, path, target)

    async def _run_in_thread(self, work: Callable[..., Returned], namespace: str, *given: object) -> Returned:
        return await asyncio.to_thread(lambda: work(self.directory(namespace), *given))

    async def delete(self, namespace: str) -> None:
        """Remove the directory, whatever permissions commands have taken from it."""
        await asyncio.to_thread(remove_tree, self._root / namespace)

    def replica(self, namespace: str) -> Replica:
        """Return the directory as a replica."""
        return DirectoryReplica(self.directory(namespace))
