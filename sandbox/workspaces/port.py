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

        Raises IsADirectoryError or NotADirectoryError if the path is blocked, OSError if the store cannot
        have the name, and UnsafePath.
        """

    @abstractmethod
    async def remove(self, namespace: str, path: str) -> None:
        """Remove a file, or a directory with its content; raises FileNotFoundError, UnsafePath."""

    @abstractmethod
    async def stat(self, namespace: str, path: str) -> FileEntry:
        """Return the entry of a path; a link is described itself, `.` is a directory.

        Raises FileNotFoundError, NotADirectoryError, UnsafePath.
        """

    @abstractmethod
    async def mkdir(self, namespace: str, path: str) -> None:
        """Create a directory and its parents. Idempotent.

        Raises FileExistsError or NotADirectoryError if a file blocks the path, OSError if the store cannot
        have the name, and UnsafePath.
        """

    @abstractmethod
    async def rename(self, namespace: str, path: str, target: str) -> None:
        """Give a file, or a directory with its content, another path that is free; parents are created.

        Raises FileNotFoundError, FileExistsError, NotADirectoryError, UnsafePath, and OSError if the target
        is below the path itself.
        """

    @abstractmethod
    async def copy(self, namespace: str, path: str, target: str) -> None:
        """Copy a file, or a directory with its content, to a path that is free; raises as `rename` does."""

    @abstractmethod
    async def delete(self, namespace: str) -> None:
        """Delete a workspace with its content. Idempotent: raises nothing if there is none."""

    @abstractmethod
    def replica(self, namespace: str) -> Replica:
        """Return a workspace as a replica for syncs, without a call to the store. Raises nothing."""
