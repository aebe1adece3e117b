"""The port of workspace stores: each workspace's files by its namespace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from sandbox.paths import FileEntry
from sandbox.workspaces.replica import Replica


class WorkspaceStore(Protocol):
    """Files that outlive sandboxes.

    A namespace is a plain path component. Paths are relative to it, as `sandbox.paths.relative_path` returns
    them, and never lead out. Each method also raises ProviderUnreachable, ProviderUnauthorized or
    ProviderRefused if the store cannot be used.
    """

    @abstractmethod
    async def list_directory(self, namespace: str, path: str) -> Sequence[FileEntry]:
        """Return the entries of a directory by name; `.` is the workspace, which may be empty.

        Raises FileNotFoundError, NotADirectoryError, UnsafePath.
        """

    @abstractmethod
    async def read(self, namespace: str, path: str, limit: int) -> bytes:
        """Return at most `limit` bytes of a file; raises FileNotFoundError, IsADirectoryError, UnsafePath."""

    @abstractmethod
    async def write(self, namespace: str, path: str, content: bytes) -> None:
        """Store a file atomically and durably.

        Raises IsADirectoryError or NotADirectoryError if the path is blocked, and UnsafePath.
        """

    @abstractmethod
    async def remove(self, namespace: str, path: str) -> None:
        """Remove a file, or a directory with its content; raises FileNotFoundError, UnsafePath."""

    @abstractmethod
    async def delete(self, namespace: str) -> None:
        """Delete a workspace with its content. Idempotent."""

    @abstractmethod
    def replica(self, namespace: str) -> Replica:
        """Return a workspace as a replica for syncs."""
