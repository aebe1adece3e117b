"""List, get, put and delete the objects of one workspace, several at a time with bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog

from sandbox.errors import ProviderRefused
from sandbox.s3 import Bucket, ObjectNotFound, read_body, translate_errors
from sandbox.workspaces.replica import Replica, ReplicaFile
from sandbox.workspaces.sandbox_transfer import MAX_NAMES, is_plain_path
from sandbox.workspaces.sync_plan import FileListing, FileStat

log = structlog.get_logger(__name__)

Given = TypeVar("Given")
Returned = TypeVar("Returned")

CONCURRENCY = 16
MAX_BATCH_BYTES = 32 * 1024 * 1024
"""The most bytes of content in memory, unless a single file is larger."""
MAX_KEY_BYTES = 1024
"""The longest object name in bytes that S3 accepts."""
DEFAULT_MODE = 0o644
_MODE_BITS = 0o755
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STORE = "workspaces"


class S3Objects(Replica):
    """The files of one workspace in a bucket, by names below `place`."""

    def __init__(self, client: Any, bucket: Bucket, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    async def list(self, below: str = "") -> FileListing:
        """List the objects; the listing has no permissions, and the ETag is the version."""
        return (await self.list_tree(below))[0]

    async def list_tree(self, below: str = "") -> tuple[FileListing, FileListing]:
        """List the files, and the directories that have an object of their own."""
        files, directories = dict[str, FileStat](), dict[str, FileStat]()
        async for one in self._list_objects(below):
            path = str(one["Key"]).removeprefix(self._bucket.prefix + self._prefix)
            if is_plain_path(path.removesuffix("/")):
                found = directories if path.endswith("/") else files
                found[path.removesuffix("/")] = FileStat(
                    int(one["Size"]), nanoseconds(one["LastModified"]), DEFAULT_MODE, _version(one)
                )
        return files, directories

    async def list_names(self, below: str) -> Sequence[str]:
        """Return every name, including those that are no plain path."""
        start = len(self._bucket.prefix + self._prefix)
        return [str(one["Key"])[start:] async for one in self._list_objects(below)]

    async def _list_objects(self, below: str) -> AsyncIterator[Any]:
        count = 0
        with translate_errors(below, _STORE):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket.bucket, Prefix=f"{self._bucket.prefix}{self._prefix}{below}"
            )
            async for page in pages:
                for one in page.get("Contents", ()):
                    count += 1
                    if count > MAX_NAMES:
                        raise ProviderRefused(f"the workspace holds more than {MAX_NAMES} files")
                    yield one

    async def has_any(self, below: str) -> bool:
        """Return whether any name begins so."""
        with translate_errors(below, _STORE):
            found = await self._client.list_objects_v2(
                Bucket=self._bucket.bucket,
                Prefix=f"{self._bucket.prefix}{self._prefix}{below}",
                MaxKeys=1,
            )
        return bool(found.get("KeyCount"))

    async def read(self, listing: FileListing) -> AsyncIterator[ReplicaFile]:
        """Get the wanted objects, a few at a time; objects that vanished or grew are synced the next time."""
        for batch in _batches(listing):
            for file in await _gather(self._read_one, batch):
                if file is not None:
                    yield file

    async def _read_one(self, one: tuple[str, FileStat]) -> ReplicaFile | None:
        path, seen = one
        try:
            with translate_errors(path, _STORE):
                answer = await self._client.get_object(**self._key(path))
                content = await read_body(answer, seen.size + 1)
        except ObjectNotFound:
            return None
        if len(content) > seen.size:
            return None
        headers = answer.get("Metadata", {})
        modified = int_metadata(headers, "modified", seen.modified)
        return path, content, FileStat(len(content), modified, _mode(headers))

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
        done = await _gather(self._write_one, batch)
        return {file[0]: seen for file, seen in zip(batch, done, strict=True) if seen is not None}

    async def _write_one(self, file: ReplicaFile) -> FileStat | None:
        path, content, seen = file
        headers = {"mode": f"{seen.mode & _MODE_BITS:o}", "modified": str(seen.modified)}
        try:
            with translate_errors(path, _STORE):
                answer = await self._client.put_object(**self._key(path), Body=content, Metadata=headers)
        except ObjectNotFound:
            log.warning("workspace.name_rejected", path=path)
            return None
        return FileStat(len(content), seen.modified, DEFAULT_MODE, _version(answer))

    async def remove(self, paths: Sequence[str]) -> None:
        """Delete objects one by one: not every S3-compatible store deletes many in one call."""
        for start in range(0, len(paths), CONCURRENCY):
            await _gather(self._delete, paths[start : start + CONCURRENCY])

    async def copy(self, path: str, target: str, names: Sequence[str]) -> None:
        """Copy objects whose names begin with `path` to names that begin with `target`."""

        async def one(name: str) -> None:
            source, goal = self._key(name), self._key(target + name.removeprefix(path))
            with translate_errors(name, _STORE):
                await self._client.copy_object(**goal, CopySource=source)

        for start in range(0, len(names), CONCURRENCY):
            await _gather(one, names[start : start + CONCURRENCY])

    async def flush(self) -> None:
        """Do nothing: a bucket is durable."""

    async def _delete(self, path: str) -> None:
        with translate_errors(path, _STORE):
            await self._client.delete_object(**self._key(path))

    def _key(self, path: str) -> dict[str, str]:
        named = self._bucket.key(self._prefix + path)
        if len(named["Key"].encode()) > MAX_KEY_BYTES:
            raise ObjectNotFound(path)
        return named


async def _gather(work: Callable[[Given], Awaitable[Returned]], all_: Sequence[Given]) -> Sequence[Returned]:
    """Do the same with each item concurrently; the first error cancels the others."""

    async def one(given: Given) -> Returned:
        return await work(given)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(given)) for given in all_]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


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


def _version(response: Any) -> str:
    return str(response.get("ETag", "")).strip('"')


def nanoseconds(when: datetime) -> int:
    """Return an object's time in nanoseconds since 1970."""
    return int((when - _EPOCH).total_seconds() * 1_000_000) * 1000


def int_metadata(metadata: Any, name: str, otherwise: int) -> int:
    """Return a number from an object's metadata, which others may have written."""
    text = str(metadata.get(name, ""))
    return int(text) if text.isdecimal() and len(text) < 20 else otherwise  # noqa: PLR2004 - of 64 bits


def _mode(metadata: Any) -> int:
    text = str(metadata.get("mode", ""))
    is_octal = bool(text) and set(text) <= set("01234567") and len(text) < 5  # noqa: PLR2004 - four digits
    return int(text, 8) & _MODE_BITS if is_octal else DEFAULT_MODE
