"""List, get, put, copy and delete the objects below one prefix, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sandbox.errors import ProviderRefused
from sandbox.s3 import Bucket, ObjectNotFound, read_body, translate_errors
from sandbox.workspaces.sandbox_transfer import MAX_NAMES, is_plain_path
from sandbox.workspaces.sync_plan import FileStat

Given = TypeVar("Given")
Returned = TypeVar("Returned")

CONCURRENCY = 16
MAX_KEY_BYTES = 1024
"""The longest object name in bytes that S3 accepts."""
DEFAULT_MODE = 0o644
MODE_BITS = 0o755
STORE = "workspaces"
"""What errors call the store."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Tree = tuple[dict[str, FileStat], dict[str, FileStat]]
"""Objects by path, and those whose names end with a slash."""


class S3Prefix:
    """The objects of a bucket whose names begin with a prefix; names are given without it."""

    def __init__(self, client: Any, bucket: Bucket, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    async def list_tree(self, below: str = "") -> Tree:
        """Return the objects whose names are plain paths, and the directories with an object of their own."""
        files, directories = dict[str, FileStat](), dict[str, FileStat]()
        async for one in self._list_objects(below):
            path = str(one["Key"]).removeprefix(self._bucket.prefix + self._prefix)
            if is_plain_path(path.removesuffix("/")):
                found = directories if path.endswith("/") else files
                found[path.removesuffix("/")] = FileStat(
                    int(one["Size"]), nanoseconds(one["LastModified"]), DEFAULT_MODE, version_of(one)
                )
        return files, directories

    async def list_names(self, below: str) -> Sequence[str]:
        """Return every name, including those that are no plain path."""
        start = len(self._bucket.prefix + self._prefix)
        return [str(one["Key"])[start:] async for one in self._list_objects(below)]

    async def _list_objects(self, below: str) -> AsyncIterator[Any]:
        count = 0
        with translate_errors(below, STORE):
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
        with translate_errors(below, STORE):
            found = await self._client.list_objects_v2(
                Bucket=self._bucket.bucket,
                Prefix=f"{self._bucket.prefix}{self._prefix}{below}",
                MaxKeys=1,
            )
        return bool(found.get("KeyCount"))

    async def get(self, name: str, limit: int) -> tuple[bytes, Any]:
        """Return at most `limit` bytes of an object, and its metadata; raises ObjectNotFound."""
        with translate_errors(name, STORE):
            answer = await self._client.get_object(**self._key(name))
            return await read_body(answer, limit), answer.get("Metadata", {})

    async def head(self, name: str) -> Any:
        """Return the description of an object; None if there is none."""
        try:
            with translate_errors(name, STORE):
                return await self._client.head_object(**self._key(name))
        except ObjectNotFound:
            return None

    async def put(self, name: str, content: bytes, metadata: dict[str, str]) -> str:
        """Put an object and return its version; raises ObjectNotFound for a name that S3 rejects."""
        with translate_errors(name, STORE):
            return version_of(
                await self._client.put_object(**self._key(name), Body=content, Metadata=metadata)
            )

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects one by one: not every S3-compatible store deletes many in one call."""
        for start in range(0, len(names), CONCURRENCY):
            await run_all(self._delete, names[start : start + CONCURRENCY])

    async def _delete(self, name: str) -> None:
        with translate_errors(name, STORE):
            await self._client.delete_object(**self._key(name))

    async def copy(self, path: str, target: str, names: Sequence[str]) -> None:
        """Copy objects whose names begin with `path` to names that begin with `target`."""

        async def one(name: str) -> None:
            source, goal = self._key(name), self._key(target + name.removeprefix(path))
            with translate_errors(name, STORE):
                await self._client.copy_object(**goal, CopySource=source)

        for start in range(0, len(names), CONCURRENCY):
            await run_all(one, names[start : start + CONCURRENCY])

    def _key(self, name: str) -> dict[str, str]:
        named = self._bucket.key(self._prefix + name)
        if len(named["Key"].encode()) > MAX_KEY_BYTES:
            raise ObjectNotFound(name)
        return named


async def run_all(work: Callable[[Given], Awaitable[Returned]], all_: Iterable[Given]) -> Sequence[Returned]:
    """Do the same with each item concurrently; the first error cancels the others."""

    async def one(given: Given) -> Returned:
        return await work(given)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(given)) for given in all_]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def version_of(response: Any) -> str:
    """Return the ETag of an object."""
    return str(response.get("ETag", "")).strip('"')


def nanoseconds(when: datetime) -> int:
    """Return an object's time in nanoseconds since 1970."""
    return int((when - _EPOCH).total_seconds() * 1_000_000) * 1000


def int_metadata(metadata: Any, name: str, otherwise: int) -> int:
    """Return a number from an object's metadata, which others may have written."""
    text = str(metadata.get(name, ""))
    return int(text) if text.isdecimal() and len(text) < 20 else otherwise  # noqa: PLR2004 - of 64 bits
