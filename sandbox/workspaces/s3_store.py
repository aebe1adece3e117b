"""Workspaces in a bucket: an object for each file, so that gateways without a common disk share them.

An object is named `PREFIX workspaces/NAMESPACE/PATH`. Its ETag is the version of its content; when a file was
written and whether it is a program stands in its metadata. Directories are what names have in common: an
empty one is not kept, and neither are links.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from sandbox.errors import Unsafe
from sandbox.paths import Entry
from sandbox.s3 import Absent, Bucket, content_of, folded
from sandbox.workspaces.port import Store
from sandbox.workspaces.replica import Side
from sandbox.workspaces.s3_objects import LONGEST_KEY, Objects
from sandbox.workspaces.sandbox_transfer import is_plain
from sandbox.workspaces.sync_plan import SECOND, Listing

PLACE = "workspaces/"
LONGEST_NAME = 255
"""Bytes that a name in a directory may have."""
_WHAT = "workspaces"


class S3Store(Store):
    """Objects below a prefix. Paths are words here: nothing is resolved, so nothing leads out."""

    def __init__(self, client: Any, bucket: Bucket) -> None:
        self.client = client
        self.bucket = bucket

    def side(self, namespace: str) -> Side:
        """Return a workspace's objects."""
        return self._objects(namespace)

    def _objects(self, namespace: str) -> Objects:
        return Objects(self.client, self.bucket, f"{PLACE}{namespace}/")

    async def entries(self, namespace: str, path: str) -> Sequence[Entry]:
        """Gather the names of a level from the names of all objects below it."""
        below = "" if path == "." else f"{path}/"
        found = await self._objects(namespace).listing(below)
        if not found and path != ".":
            if await self._head(namespace, path) is not None:
                raise NotADirectoryError(errno.ENOTDIR, "is no directory", path)
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return _level(found, below)

    async def read(self, namespace: str, path: str, limit: int) -> bytes:
        """Get the beginning of an object."""
        if path == "." or limit <= 0:
            await self._must_be_file(namespace, path)
            return b""
        try:
            with folded(path, _WHAT):
                answer = await self.client.get_object(**self._key(namespace, path))
                return await content_of(answer, limit)
        except Absent:
            await self._must_be_file(namespace, path)
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    async def _must_be_file(self, namespace: str, path: str) -> None:
        if path == "." or await self._is_directory(namespace, path):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if await self._head(namespace, path) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)

    async def write(self, namespace: str, path: str, content: bytes) -> None:
        """Put an object, unless a directory or a file is in its way; a program stays one."""
        _usable(path)
        if await self._is_directory(namespace, path):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        for parent in list(PurePosixPath(path).parents)[:-1]:
            if await self._head(namespace, str(parent)) is not None:
                raise NotADirectoryError(errno.ENOTDIR, "is no directory", str(parent))
        before = await self._head(namespace, path)
        mode = before.get("Metadata", {}).get("mode", "644") if before is not None else "644"
        metadata = {"mode": mode, "modified": str(time.time_ns())}
        try:
            with folded(path, _WHAT):
                await self.client.put_object(**self._key(namespace, path), Body=content, Metadata=metadata)
        except Absent:
            raise OSError(errno.EINVAL, "the store takes no such name", path) from None

    async def remove(self, namespace: str, path: str) -> None:
        """Delete an object, or all below a directory."""
        if path in {"", "."}:
            raise Unsafe("the workspace itself is removed with its record")
        objects = self._objects(namespace)
        names = [*await objects.names(f"{path}/")]
        if await self._head(namespace, path) is not None:
            names.append(path)
        if not names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        await objects.remove(names)

    async def forget(self, namespace: str) -> None:
        """Delete all objects of a workspace."""
        objects = self._objects(namespace)
        await objects.remove(await objects.names(""))

    async def namespaces(self) -> Sequence[str]:
        """Return the workspaces of which there are objects."""
        place, found = f"{self.bucket.prefix}{PLACE}", list[str]()
        with folded(place, _WHAT):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket.bucket, Prefix=place, Delimiter="/"
            )
            async for page in pages:
                found += [one["Prefix"][len(place) :].rstrip("/") for one in page.get("CommonPrefixes", ())]
        return sorted(found)

    async def prove(self) -> None:
        """List, write and delete in the bucket; raises what does not work of it."""
        await self.namespaces()
        probe = self.bucket.key(f"probe-{secrets.token_hex(8)}")
        with folded("probe", _WHAT):
            await self.client.put_object(**probe, Body=b"")
            await self.client.delete_object(**probe)

    def _key(self, namespace: str, path: str) -> dict[str, str]:
        if not is_plain(path):
            raise Unsafe(f"{path!r} is no path below the workspace")
        return self.bucket.key(f"{PLACE}{namespace}/{path}")

    async def _head(self, namespace: str, path: str) -> Any:
        try:
            with folded(path, _WHAT):
                return await self.client.head_object(**self._key(namespace, path))
        except Absent:
            return None

    async def _is_directory(self, namespace: str, path: str) -> bool:
        return await self._objects(namespace).has_any(f"{path}/")


def _usable(path: str) -> None:
    """Raise where a file of this name could not stand in a directory: a sandbox is to see it as one."""
    if path in {"", "."}:
        raise Unsafe("a file needs a name")
    try:
        parts = [len(part.encode()) for part in path.split("/")]
    except UnicodeEncodeError:
        raise Unsafe("a name must be UTF-8") from None
    if max(parts) > LONGEST_NAME or sum(parts) + len(parts) > LONGEST_KEY // 2:
        raise OSError(errno.ENAMETOOLONG, "the name is too long", path)


def _level(found: Listing, below: str) -> list[Entry]:
    """Return files and directories of one level; a directory is as old as the newest thing in it."""
    entries: dict[str, Entry] = {}
    for path, seen in found.items():
        name, slash, _rest = path.removeprefix(below).partition("/")
        written = seen.modified / SECOND
        before = entries.get(name)
        if slash:
            written = max(written, before.modified if before is not None else 0.0)
        entries[name] = Entry(
            name=name,
            kind="directory" if slash else "file",
            size=0 if slash else seen.size,
            modified=written,
            changed=written,
        )
    return [entries[name] for name in sorted(entries)]
