"""A replica inside a sandbox, accessed by archives through the port."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence

from sandbox.port import Sandbox
from sandbox.workspaces import sandbox_transfer
from sandbox.workspaces.replica import Replica, ReplicaFile
from sandbox.workspaces.sync_plan import FileListing

ARCHIVE_OVERHEAD = 8 * 1024
"""Bytes that a file may take in an archive beyond its content: its header, and a long name."""
SPOOL_BYTES = 8 * 1024 * 1024


class SandboxReplica(Replica):
    """The files of a sandbox that cannot mount its workspace."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def list(self) -> FileListing:
        """List the files by a run in the sandbox."""
        return await sandbox_transfer.list_files(self._sandbox)

    async def read(self, listing: FileListing) -> AsyncIterator[ReplicaFile]:
        """Fetch an archive of the files and yield the wanted ones."""
        most = sum(stat.size for stat in listing.values()) + len(listing) * ARCHIVE_OVERHEAD
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as archive:
            await sandbox_transfer.fetch(self._sandbox, tuple(listing), archive, limit=most)
            archive.seek(0)
            found = sandbox_transfer.read_archive(archive, listing)
            while (one := await asyncio.to_thread(next, found, None)) is not None:
                path, content = one
                yield path, content, listing[path]

    async def write(self, source: AsyncIterator[ReplicaFile]) -> FileListing:
        """Unpack an archive of the files there; a file whose description then differs was not written."""
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as archive:
            with sandbox_transfer.TarWriter(archive) as packing:
                async for path, content, stat in source:
                    await asyncio.to_thread(packing.add, path, content, stat)
            archive.seek(0)
            await sandbox_transfer.write_archive(self._sandbox, archive)
        now = await sandbox_transfer.list_files(self._sandbox)
        return {path: stat for path, stat in packing.expected.items() if now.get(path) == stat}

    async def flush(self) -> None:
        """Do nothing: the instance's disk is the provider's."""

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files by a run in the sandbox."""
        await sandbox_transfer.remove(self._sandbox, paths)
