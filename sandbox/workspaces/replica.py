"""A side of the carrying: a workspace's files in one place, be it a store, a sandbox or a working copy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from sandbox.workspaces.sync_plan import FileListing, FileStat

ReplicaFile = tuple[str, bytes, FileStat]
"""A path, what stands there, and how it looks."""


class Replica(Protocol):
    """Regular files by plain relative paths (`sandbox.workspaces.sandbox_transfer.is_plain`); links are not told of.

    Each may raise SandboxError and OSError.
    """

    @abstractmethod
    async def list(self) -> FileListing:
        """Return what stands here."""

    @abstractmethod
    def read(self, listing: FileListing) -> AsyncIterator[ReplicaFile]:
        """Yield those of the wanted files that can be read, none larger than it was said to be."""

    @abstractmethod
    async def write(self, source: AsyncIterator[ReplicaFile]) -> FileListing:
        """Write files; return how those look here now that could be written."""

    @abstractmethod
    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files, and the directories that are empty then; one that is not there is gone."""

    @abstractmethod
    async def flush(self) -> None:
        """Have all that stands here survive a power failure, where taking it did not see to that."""

    async def hash(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Return the MD5 of files as far as it costs little here; by it equal content is told."""
        del paths
        return {}
