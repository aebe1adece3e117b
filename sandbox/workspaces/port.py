"""The door to the workspace store: every workspace's files by its namespace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from sandbox.paths import FileEntry
from sandbox.workspaces.replica import Replica


class WorkspaceStore(Protocol):
    """Files that outlive sandboxes. A namespace is a plain path component; paths are relative to it, as
    `sandbox.paths.relative` returns them, and never lead out.

    Besides what is said, each raises Unreachable, Unauthorized or Refused when the store cannot be used.
    """

    @abstractmethod
    async def list_directory(self, namespace: str, path: str) -> Sequence[FileEntry]:
        """Return what stands in a directory, by name; `.` is the workspace, which may be empty.

        Raises FileNotFoundError, NotADirectoryError, Unsafe.
        """

    @abstractmethod
    async def read(self, namespace: str, path: str, limit: int) -> bytes:
        """Return at most `limit` bytes of a file; raises FileNotFoundError, IsADirectoryError, Unsafe."""

    @abstractmethod
    async def write(self, namespace: str, path: str, content: bytes) -> None:
        """Keep a file whole: after this returns it survives, before there is the old one.

        Raises IsADirectoryError, NotADirectoryError where one stands in the way, Unsafe.
        """

    @abstractmethod
    async def remove(self, namespace: str, path: str) -> None:
        """Remove a file, or a directory with all in it; raises FileNotFoundError, Unsafe."""

    @abstractmethod
    async def delete(self, namespace: str) -> None:
        """Remove a workspace with all in it; twice is no error."""

    @abstractmethod
    def replica(self, namespace: str) -> Replica:
        """Return a workspace as something that files can be carried from and to."""
