"""Store workspaces in a bucket, one object per file, so that gateways without a common disk share them.

An object is named `PREFIX workspaces/NAMESPACE/PATH`. Its ETag is the version of its content; the
modification time and the executable bit are in its metadata. Directories are common prefixes of names; one
that was created by itself is an empty object whose name ends with a slash. Links are not stored.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from sandbox.errors import UnsafePath
from sandbox.paths import FileEntry
from sandbox.s3 import Bucket, ObjectNotFound, read_body, translate_errors
from sandbox.workspaces.local_tree import check_move
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.replica import Replica
from sandbox.workspaces.s3_objects import MAX_KEY_BYTES, S3Objects, int_metadata, nanoseconds
from sandbox.workspaces.sandbox_transfer import is_plain_path
from sandbox.workspaces.sync_plan import NANOSECONDS_PER_SECOND, FileListing

PREFIX = "workspaces/"
MAX_NAME_BYTES = 255
"""The most bytes of a name in a directory."""
_STORE = "workspaces"


class S3WorkspaceStore(WorkspaceStore):
    """Objects below a prefix. Paths are plain text here: nothing is resolved, so nothing leads out."""

    def __init__(self, client: Any, bucket: Bucket) -> None:
        self.client = client
        self.bucket = bucket

    def replica(self, namespace: str) -> Replica:
        """Return a workspace's objects."""
        return self._objects(namespace)

    def _objects(self, namespace: str) -> S3Objects:
        return S3Objects(self.client, self.bucket, f"{PREFIX}{namespace}/")

    async def list_directory(self, namespace: str, path: str) -> Sequence[FileEntry]:
        """Build the entries of one level from the names of all objects below it."""
        below = "" if path == "." else f"{path}/"
        found, directories = await self._objects(namespace).list_tree(below)
        if not found and not directories and path != ".":
            if await self._head(namespace, path) is not None:
                raise NotADirectoryError(errno.ENOTDIR, "is not a directory", path)
            await self._check_parents(namespace, path)
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return _entries_of_level(found, directories, below)

    async def read(self, namespace: str, path: str, limit: int) -> bytes:
        """Get the beginning of an object."""
        if path == "." or limit <= 0:
            await self._check_is_file(namespace, path)
            return b""
        try:
            with translate_errors(path, _STORE):
                response = await self.client.get_object(**self._key(namespace, path))
                return await read_body(response, limit)
        except ObjectNotFound:
            await self._check_is_file(namespace, path)
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    async def _check_is_file(self, namespace: str, path: str) -> None:
        if path == "." or await self._is_directory(namespace, path):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if await self._head(namespace, path) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)

    async def write(self, namespace: str, path: str, content: bytes) -> None:
        """Put an object unless a directory or a file blocks its path; the executable bit is kept."""
        _check_name(path)
        if await self._is_directory(namespace, path):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        await self._check_parents(namespace, path)
        before = await self._head(namespace, path)
        mode = before.get("Metadata", {}).get("mode", "644") if before is not None else "644"
        metadata = {"mode": mode, "modified": str(time.time_ns())}
        try:
            with translate_errors(path, _STORE):
                await self.client.put_object(**self._key(namespace, path), Body=content, Metadata=metadata)
        except ObjectNotFound:
            raise OSError(errno.EINVAL, "the store rejects this name", path) from None

    async def _check_parents(self, namespace: str, path: str) -> None:
        for parent in list(PurePosixPath(path).parents)[:-1]:
            if await self._head(namespace, str(parent)) is not None:
                raise NotADirectoryError(errno.ENOTDIR, "is not a directory", str(parent))

    async def stat(self, namespace: str, path: str) -> FileEntry:
        """Describe an object, or a directory by what is below it."""
        head = await self._head(namespace, path) if path != "." else None
        if head is not None:
            default = nanoseconds(head["LastModified"])
            written = int_metadata(head.get("Metadata", {}), "modified", default) / NANOSECONDS_PER_SECOND
            changed, size = default / NANOSECONDS_PER_SECOND, int(head["ContentLength"])
            name = PurePosixPath(path).name
            return FileEntry(name=name, kind="file", size=size, modified=written, changed=changed)
        entries = await self.list_directory(namespace, path)
        newest = max((one.modified for one in entries), default=0.0)
        name = "." if path == "." else PurePosixPath(path).name
        return FileEntry(name=name, kind="directory", size=0, modified=newest, changed=newest)

    async def mkdir(self, namespace: str, path: str) -> None:
        """Put an empty object that stands for a directory."""
        if path == ".":
            return
        _check_name(path)
        if await self._head(namespace, path) is not None:
            raise FileExistsError(errno.EEXIST, "is a file", path)
        await self._check_parents(namespace, path)
        key = self._key(namespace, path)
        try:
            with translate_errors(path, _STORE):
                await self.client.put_object(**{**key, "Key": f"{key['Key']}/"}, Body=b"")
        except ObjectNotFound:
            raise OSError(errno.EINVAL, "the store rejects this name", path) from None

    async def rename(self, namespace: str, path: str, target: str) -> None:
        """Copy the objects, then delete the old ones; a crash in between leaves both."""
        names = await self._copy(namespace, path, target)
        await self._objects(namespace).remove(names)

    async def copy(self, namespace: str, path: str, target: str) -> None:
        """Copy an object, or all below a directory, within the bucket."""
        await self._copy(namespace, path, target)

    async def _copy(self, namespace: str, path: str, target: str) -> Sequence[str]:
        check_move(path, target)
        _check_name(target)
        names = await self._names_of(namespace, path)
        if await self._head(namespace, target) is not None or await self._is_directory(namespace, target):
            raise FileExistsError(errno.EEXIST, "exists already", target)
        await self._check_parents(namespace, target)
        try:
            await self._objects(namespace).copy(path, target, names)
        except ObjectNotFound:
            raise OSError(errno.EINVAL, "the store rejects this name", target) from None
        return names

    async def _names_of(self, namespace: str, path: str) -> Sequence[str]:
        """Return the names of a file or of all objects of a directory; raises FileNotFoundError."""
        names = [*await self._objects(namespace).list_names(f"{path}/")]
        if await self._head(namespace, path) is not None:
            names.append(path)
        if not names:
            await self._check_parents(namespace, path)
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return names

    async def remove(self, namespace: str, path: str) -> None:
        """Delete an object, or all below a directory."""
        if path in {"", "."}:
            raise UnsafePath("the workspace itself is removed with its record")
        self._key(namespace, path)
        try:
            names = await self._names_of(namespace, path)
        except NotADirectoryError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None
        await self._objects(namespace).remove(names)

    async def delete(self, namespace: str) -> None:
        """Delete all objects of a workspace."""
        objects = self._objects(namespace)
        await objects.remove(await objects.list_names(""))

    async def list_namespaces(self) -> Sequence[str]:
        """Return the workspaces that have objects."""
        prefix, found = f"{self.bucket.prefix}{PREFIX}", list[str]()
        with translate_errors(prefix, _STORE):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket.bucket, Prefix=prefix, Delimiter="/"
            )
            async for page in pages:
                found += [one["Prefix"][len(prefix) :].rstrip("/") for one in page.get("CommonPrefixes", ())]
        return sorted(found)

    async def check_access(self) -> None:
        """List, write and delete in the bucket; raises the error of the operation that fails."""
        await self.list_namespaces()
        probe = self.bucket.key(f"probe-{secrets.token_hex(8)}")
        with translate_errors("probe", _STORE):
            await self.client.put_object(**probe, Body=b"")
            await self.client.delete_object(**probe)

    def _key(self, namespace: str, path: str) -> dict[str, str]:
        if not is_plain_path(path):
            raise UnsafePath(f"{path!r} is not a path below the workspace")
        return self.bucket.key(f"{PREFIX}{namespace}/{path}")

    async def _head(self, namespace: str, path: str) -> Any:
        try:
            with translate_errors(path, _STORE):
                return await self.client.head_object(**self._key(namespace, path))
        except ObjectNotFound:
            return None

    async def _is_directory(self, namespace: str, path: str) -> bool:
        return await self._objects(namespace).has_any(f"{path}/")


def _check_name(path: str) -> None:
    """Raise an error for a name that a directory could not hold, because sandboxes see it as a file."""
    if path in {"", "."}:
        raise UnsafePath("a file needs a name")
    try:
        parts = [len(part.encode()) for part in path.split("/")]
    except UnicodeEncodeError:
        raise UnsafePath("a name must be UTF-8") from None
    if max(parts) > MAX_NAME_BYTES or sum(parts) + len(parts) > MAX_KEY_BYTES // 2:
        raise OSError(errno.ENAMETOOLONG, "the name is too long", path)


def _entries_of_level(found: FileListing, directories: FileListing, below: str) -> list[FileEntry]:
    """Return files and directories of one level; a directory is as old as its newest entry."""
    entries: dict[str, FileEntry] = {}
    made = {f"{path}/": seen for path, seen in directories.items() if f"{path}/" != below}
    for path, seen in {**made, **found}.items():
        name, slash, _rest = path.removeprefix(below).partition("/")
        written = seen.modified / NANOSECONDS_PER_SECOND
        before = entries.get(name)
        if slash:
            written = max(written, before.modified if before is not None else 0.0)
        entries[name] = FileEntry(
            name=name,
            kind="directory" if slash else "file",
            size=0 if slash else seen.size,
            modified=written,
            changed=written,
        )
    return [entries[name] for name in sorted(entries)]
