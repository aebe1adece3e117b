"""The objects of one workspace as a replica: files, links and empty directories.

A file is an object below `workspaces/`, whose name ends with a slash for a directory that was created by
itself. A link is an object below `links/`, which holds its target.
"""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import structlog

from sandbox.errors import UnsafePath
from sandbox.s3 import Bucket, ObjectNotFound
from sandbox.workspaces.local_entries import check_target
from sandbox.workspaces.replica import Replica, ReplicaFile
from sandbox.workspaces.s3.prefix import (
    CONCURRENCY,
    DEFAULT_MODE,
    MODE_BITS,
    S3Prefix,
    int_metadata,
    run_all,
)
from sandbox.workspaces.sync_plan import EMPTY_DIRECTORY, FileListing, FileStat, parent_directories

log = structlog.get_logger(__name__)

FILES = "workspaces/"
LINKS = "links/"
MAX_BATCH_BYTES = 32 * 1024 * 1024
"""The most bytes of content in memory, unless a single file is larger."""


class S3Objects(Replica):
    """The files, links and directories of one workspace in a bucket."""

    def __init__(self, client: Any, bucket: Bucket, namespace: str) -> None:
        self.files = S3Prefix(client, bucket, f"{FILES}{namespace}/")
        self.links = S3Prefix(client, bucket, f"{LINKS}{namespace}/")
        self._listed: dict[str, FileStat] = {}
        self._marked: set[str] = set()

    async def list(self) -> FileListing:
        """List the objects; the listing has no permissions, and the ETag is the version."""
        (files, directories), (links, _) = await run_all(S3Prefix.list_tree, (self.files, self.links))
        found = {**files, **{path: as_link(seen) for path, seen in links.items() if path not in files}}
        self._marked = set(directories)
        filled = parent_directories((*found, *directories))
        found |= {path: EMPTY_DIRECTORY for path in directories if path not in filled and path not in found}
        self._listed = found
        return found

    async def read(self, listing: FileListing) -> AsyncIterator[ReplicaFile]:
        """Get the wanted objects, a few at a time; objects that vanished or grew are synced the next time."""
        for batch in _batches(listing):
            for file in await run_all(self._read_one, batch):
                if file is not None:
                    yield file

    async def _read_one(self, one: tuple[str, FileStat]) -> ReplicaFile | None:
        path, seen = one
        if seen.is_directory:
            return path, b"", seen
        try:
            content, metadata = await (self.links if seen.is_link else self.files).get(path, seen.size + 1)
        except ObjectNotFound:
            return None
        if len(content) > seen.size:
            return None
        modified = int_metadata(metadata, "modified", seen.modified)
        found = FileStat(len(content), modified, _mode(metadata))
        return path, content, as_link(found) if seen.is_link else found

    async def write(self, source: AsyncIterator[ReplicaFile]) -> FileListing:
        """Put files as objects, a few at a time; a file whose name S3 rejects stays where it is."""
        written: dict[str, FileStat] = {}
        batch: list[ReplicaFile] = []
        async for file in source:
            batch.append(file)
            if len(batch) == CONCURRENCY or sum(len(one[1]) for one in batch) > MAX_BATCH_BYTES:
                written.update(await self._write_all(batch))
                batch = []
        written.update(await self._write_all(batch))
        return written

    async def _write_all(self, batch: Sequence[ReplicaFile]) -> Mapping[str, FileStat]:
        done = await run_all(self._write_one, batch)
        return {file[0]: seen for file, seen in zip(batch, done, strict=True) if seen is not None}

    async def _write_one(self, file: ReplicaFile) -> FileStat | None:
        path, content, seen = file
        metadata = {"mode": f"{seen.mode & MODE_BITS:o}", "modified": str(seen.modified)}
        try:
            version = await self._put(path, content, seen, metadata)
            await self._delete_other_kind(path, seen)
        except (ObjectNotFound, UnsafePath):
            log.warning("workspace.name_rejected", path=path)
            return None
        written = FileStat(len(content), seen.modified, DEFAULT_MODE, version)
        return EMPTY_DIRECTORY if seen.is_directory else as_link(written) if seen.is_link else written

    async def _put(self, path: str, content: bytes, seen: FileStat, metadata: dict[str, str]) -> str:
        if seen.is_directory:
            return await self.files.put(f"{path}/", b"", metadata)
        if seen.is_link:
            return await self.links.put(path, check_target(path, content), metadata)
        return await self.files.put(path, content, metadata)

    async def _delete_other_kind(self, path: str, seen: FileStat) -> None:
        """Delete what the path was before, if that was of another kind and has another name."""
        before = self._listed.get(path)
        if before is not None and stat.S_IFMT(before.mode) != stat.S_IFMT(seen.mode):
            await self.remove([path])

    async def remove(self, paths: Sequence[str]) -> None:
        """Delete the objects of files, links and directories, also those of directories that become empty.

        A directory with files needs no object, so those of all parents are deleted.
        """
        listed = {path: self._listed.get(path) for path in paths}
        markers = parent_directories(paths) & self._marked
        markers |= {path for path, seen in listed.items() if seen is not None and seen.is_directory}
        await self.links.delete([path for path, seen in listed.items() if seen is not None and seen.is_link])
        await self.files.delete(
            [path for path, seen in listed.items() if seen is None or seen.is_regular]
            + [f"{path}/" for path in markers]
        )

    async def flush(self) -> None:
        """Do nothing: a bucket is durable."""


def as_link(seen: FileStat) -> FileStat:
    """Return the description of a link from that of its object."""
    return seen._replace(mode=stat.S_IFLNK)


def _batches(wanted: FileListing) -> Iterator[list[tuple[str, FileStat]]]:
    batch, size = list[tuple[str, FileStat]](), 0
    for path, seen in wanted.items():
        if batch and (len(batch) == CONCURRENCY or size + seen.size > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((path, seen))
        size += seen.size
    if batch:
        yield batch


def _mode(metadata: Any) -> int:
    text = str(metadata.get("mode", ""))
    is_octal = bool(text) and set(text) <= set("01234567") and len(text) < 5  # noqa: PLR2004 - four digits
    return int(text, 8) & MODE_BITS if is_octal else DEFAULT_MODE
