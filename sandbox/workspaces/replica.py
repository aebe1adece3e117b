"""The port of replicas: a workspace's files in one place, be it a store, a sandbox or a working copy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from sandbox.workspaces.sync_plan import FileListing, FileStat

ReplicaFile = tuple[str, bytes, FileStat]
"""A path, the description of its file, and its content."""


class Replica(Protocol):
    """Files, links and empty directories by plain relative paths (`sandbox_transfer.is_plain_path`).

    A link is kept as it is: its content is its target, which may lead anywhere, and is never followed. Each
    method may raise SandboxError and OSError.
    """

    @abstractmethod
    async def list(self) -> FileListing:
        """Return the files, links and empty directories of this replica."""

    @abstractmethod
    def read(self, listing: FileListing) -> AsyncIterator[ReplicaFile]:
        """Yield the wanted files that are still what was listed, none larger than its listed size."""

    @abstractmethod
    async def write(self, source: AsyncIterator[ReplicaFile]) -> FileListing:
        """Write files, none through a link; return the descriptions of those that were written.

        An empty directory in the place of a file is replaced, any other directory is not.
        """

    @abstractmethod
    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files and empty directories, and directories that become empty. Idempotent."""

    @abstractmethod
    async def flush(self) -> None:
        """Make all files durable, unless writing them already did."""

    async def hash(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Return the MD5 of files if it is cheap here; equal content is recognised by it."""
        del paths
        return {}
