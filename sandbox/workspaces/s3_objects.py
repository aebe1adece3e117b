"""The objects of one workspace, listed, got, put and deleted, several at a time within bounds of memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog

from sandbox.errors import Refused
from sandbox.s3 import Absent, Bucket, content_of, folded
from sandbox.workspaces.replica import File, Side
from sandbox.workspaces.sandbox_transfer import MOST_NAMES, is_plain
from sandbox.workspaces.sync_plan import Listing, Seen

log = structlog.get_logger(__name__)

Given = TypeVar("Given")
Returned = TypeVar("Returned")

AT_ONCE = 16
BATCH = 32 * 1024 * 1024
"""Bytes of content that are in memory at a time, unless one file alone has more."""
LONGEST_KEY = 1024
"""Bytes that S3 takes for a name."""
PLAIN = 0o644
_BITS = 0o755
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHAT = "workspaces"


class Objects(Side):
    """The files of one workspace in a bucket, by names below `place`."""

    def __init__(self, client: Any, bucket: Bucket, place: str) -> None:
        self._client = client
        self._bucket = bucket
        self._place = place

    async def listing(self, below: str = "") -> Listing:
        """List the objects; a file's permissions are not told, its ETag is its mark."""
        found: dict[str, Seen] = {}
        async for one in self._listed(below):
            path = str(one["Key"]).removeprefix(self._bucket.prefix + self._place)
            if is_plain(path):
                found[path] = Seen(int(one["Size"]), _moment(one["LastModified"]), PLAIN, _mark(one))
        return found

    async def names(self, below: str) -> Sequence[str]:
        """Return every name, also of what is no plain path."""
        start = len(self._bucket.prefix + self._place)
        return [str(one["Key"])[start:] async for one in self._listed(below)]

    async def _listed(self, below: str) -> AsyncIterator[Any]:
        count = 0
        with folded(below, _WHAT):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket.bucket, Prefix=f"{self._bucket.prefix}{self._place}{below}"
            )
            async for page in pages:
                for one in page.get("Contents", ()):
                    count += 1
                    if count > MOST_NAMES:
                        raise Refused(f"the workspace holds more than {MOST_NAMES} files")
                    yield one

    async def has_any(self, below: str) -> bool:
        """Say whether any name begins so."""
        with folded(below, _WHAT):
            found = await self._client.list_objects_v2(
                Bucket=self._bucket.bucket,
                Prefix=f"{self._bucket.prefix}{self._place}{below}",
                MaxKeys=1,
            )
        return bool(found.get("KeyCount"))

    async def contents(self, wanted: Listing) -> AsyncIterator[File]:
        """Get the wanted objects, a few at a time; one that is gone or grew is seen again next time."""
        for batch in _batches(wanted):
            for file in await _together(self._content, batch):
                if file is not None:
                    yield file

    async def _content(self, one: tuple[str, Seen]) -> File | None:
        path, seen = one
        try:
            with folded(path, _WHAT):
                answer = await self._client.get_object(**self._key(path))
                content = await content_of(answer, seen.size + 1)
        except Absent:
            return None
        if len(content) > seen.size:
            return None
        told = answer.get("Metadata", {})
        return path, content, Seen(len(content), _number(told, "modified", seen.modified), _mode(told))

    async def take(self, given: AsyncIterator[File]) -> Listing:
        """Put files as objects, a few at a time; one whose name S3 does not take stays where it is."""
        taken: dict[str, Seen] = {}
        batch: list[File] = []
        async for file in given:
            batch.append(file)
            if len(batch) == AT_ONCE or sum(len(one[1]) for one in batch) > BATCH:
                taken.update(await self._put_all(batch))
                batch = []
        taken.update(await self._put_all(batch))
        return taken

    async def _put_all(self, batch: Sequence[File]) -> Mapping[str, Seen]:
        done = await _together(self._put, batch)
        return {file[0]: seen for file, seen in zip(batch, done, strict=True) if seen is not None}

    async def _put(self, file: File) -> Seen | None:
        path, content, seen = file
        told = {"mode": f"{seen.mode & _BITS:o}", "modified": str(seen.modified)}
        try:
            with folded(path, _WHAT):
                answer = await self._client.put_object(**self._key(path), Body=content, Metadata=told)
        except Absent:
            log.warning("workspace.name_not_taken", path=path)
            return None
        return Seen(len(content), seen.modified, PLAIN, _mark(answer))

    async def remove(self, paths: Sequence[str]) -> None:
        """Delete objects one by one: not every store that speaks S3 deletes many in one call."""
        for start in range(0, len(paths), AT_ONCE):
            await _together(self._delete, paths[start : start + AT_ONCE])

    async def settle(self) -> None:
        """Do nothing: what a bucket has taken it keeps."""

    async def _delete(self, path: str) -> None:
        with folded(path, _WHAT):
            await self._client.delete_object(**self._key(path))

    def _key(self, path: str) -> dict[str, str]:
        named = self._bucket.key(self._place + path)
        if len(named["Key"].encode()) > LONGEST_KEY:
            raise Absent(path)
        return named


async def _together(
    work: Callable[[Given], Awaitable[Returned]], all_: Sequence[Given]
) -> Sequence[Returned]:
    """Do the same with each at once; the first error ends the others."""

    async def one(given: Given) -> Returned:
        return await work(given)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(given)) for given in all_]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _batches(wanted: Listing) -> Iterator[list[tuple[str, Seen]]]:
    batch, size = list[tuple[str, Seen]](), 0
    for path, seen in wanted.items():
        if batch and (len(batch) == AT_ONCE or size + seen.size > BATCH):
            yield batch
            batch, size = [], 0
        batch.append((path, seen))
        size += seen.size
    if batch:
        yield batch


def _mark(answer: Any) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _moment(when: datetime) -> int:
    return int((when - _EPOCH).total_seconds() * 1_000_000) * 1000


def _number(told: Any, name: str, otherwise: int) -> int:
    text = str(told.get(name, ""))
    return int(text) if text.isdecimal() and len(text) < 20 else otherwise  # noqa: PLR2004 - of 64 bits


def _mode(told: Any) -> int:
    text = str(told.get("mode", ""))
    return int(text, 8) & _BITS if text and set(text) <= set("01234567") and len(text) < 5 else PLAIN  # noqa: PLR2004
