"""Store workspaces in a bucket, one object per file, so that gateways without a common disk share them.

An object is named `PREFIX workspaces/NAMESPACE/PATH`. Its ETag is the version of its content; the
modification time and the executable bit are in its metadata. Directories are common prefixes of names; one
that was created by itself is an empty object whose name ends with a slash. A link is an object `PREFIX
links/NAMESPACE/PATH` that holds its target. Reads follow links inside the workspace; nothing is written
through a link.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from sandbox.errors import UnsafePath
from sandbox.paths import FileEntry
from sandbox.s3 import Bucket, ObjectNotFound, translate_errors
from sandbox.workspaces.local_tree import check_move
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.replica import Replica
from sandbox.workspaces.s3.links import refuse_links, resolve
from sandbox.workspaces.s3.objects import FILES, LINKS, S3Objects, as_link
from sandbox.workspaces.s3.prefix import MAX_KEY_BYTES, STORE, S3Prefix, int_metadata, nanoseconds
from sandbox.workspaces.sandbox_transfer import is_plain_path
from sandbox.workspaces.sync_plan import NANOSECONDS_PER_SECOND, FileListing

MAX_NAME_BYTES = 255
"""The most bytes of a name in a directory."""


class S3WorkspaceStore(WorkspaceStore):
    """Objects below a prefix. Paths are plain text here: nothing is resolved, so nothing leads out."""

    def __init__(self, client: Any, bucket: Bucket) -> None:
        self.client = client
        self.bucket = bucket

    def replica(self, namespace: str) -> Replica:
        """Return a workspace's objects."""
        return self._objects(namespace)

    def _objects(self, namespace: str) -> S3Objects:
        return S3Objects(self.client, self.bucket, namespace)

    async def list_directory(self, namespace: str, path: str) -> Sequence[FileEntry]:
        """Build the entries of one level from the names of all objects below it."""
        entries = await self._list_level(namespace, path)
        if entries is None and (target := await self._resolve(namespace, path)) != path:
            entries, path = await self._list_level(namespace, target), target
        if entries is None:
            if await self._head(namespace, path) is not None:
                raise NotADirectoryError(errno.ENOTDIR, "is not a directory", path)
            await self._check_parents(namespace, path)
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return entries

    async def _list_level(self, namespace: str, path: str) -> Sequence[FileEntry] | None:
        """Return the entries of one level; None if there is no such directory."""
        below = "" if path == "." else f"{path}/"
        objects = self._objects(namespace)
        found, directories = await objects.files.list_tree(below)
        links, _ = await objects.links.list_tree(below)
        found |= {name: as_link(seen) for name, seen in links.items() if name not in found}
        if not found and not directories and path != ".":
            return None
        return _entries_of_level(found, directories, below)

    async def _resolve(self, namespace: str, path: str) -> str:
        return await resolve(self._objects(namespace).links, path)

    async def read(self, namespace: str, path: str, limit: int) -> bytes:
        """Get the beginning of an object."""
        if path == "." or limit <= 0:
            await self._check_is_file(namespace, path)
            return b""
        content = await self._read(namespace, path, limit)
        if content is None and (target := await self._resolve(namespace, path)) != path:
            content, path = await self._read(namespace, target, limit), target
        if content is None:
            await self._check_is_file(namespace, path)
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return content

    async def _read(self, namespace: str, path: str, limit: int) -> bytes | None:
        if path == ".":
            return None
        try:
            return (await self._files(namespace, path).get(path, limit))[0]
        except ObjectNotFound:
            return None

    async def _check_is_file(self, namespace: str, path: str) -> None:
        if path == "." or await self._is_directory(namespace, path):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if await self._head(namespace, path) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)

    async def write(self, namespace: str, path: str, content: bytes) -> None:
        """Put an object unless a directory or a file blocks its path; the executable bit is kept."""
        _check_name(path)
        await refuse_links(self._objects(namespace).links, path)
        if await self._is_directory(namespace, path):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        await self._check_parents(namespace, path)
        before = await self._head(namespace, path)
        mode = before.get("Metadata", {}).get("mode", "644") if before is not None else "644"
        metadata = {"mode": mode, "modified": str(time.time_ns())}
        try:
            await self._files(namespace, path).put(path, content, metadata)
        except ObjectNotFound:
            raise OSError(errno.EINVAL, "the store rejects this name", path) from None

    async def _check_parents(self, namespace: str, path: str) -> None:
        for parent in list(PurePosixPath(path).parents)[:-1]:
            if await self._head(namespace, str(parent)) is not None:
                raise NotADirectoryError(errno.ENOTDIR, "is not a directory", str(parent))

    async def stat(self, namespace: str, path: str) -> FileEntry:
        """Describe an object, or a directory by what is below it."""
        found = await self._describe(namespace, path) if path != "." else None
        if found is None and (parent := PurePosixPath(path).parent.as_posix()) != ".":
            path = f"{await self._resolve(namespace, parent)}/{PurePosixPath(path).name}".removeprefix("./")
            found = await self._describe(namespace, path)
        if found is not None:
            return found
        entries = await self.list_directory(namespace, path)
        newest = max((one.modified for one in entries), default=0.0)
        name = "." if path == "." else PurePosixPath(path).name
        return FileEntry(name=name, kind="directory", size=0, modified=newest, changed=newest)

    async def _describe(self, namespace: str, path: str) -> FileEntry | None:
        """Describe a file or a link; None if there is none."""
        kind, head = "file", await self._head(namespace, path)
        if head is None:
            kind, head = "link", await self._objects(namespace).links.head(path)
        if head is None:
            return None
        default = nanoseconds(head["LastModified"])
        written = int_metadata(head.get("Metadata", {}), "modified", default)
        return FileEntry(
            name=PurePosixPath(path).name,
            kind=kind,
            size=int(head["ContentLength"]),
            modified=written / NANOSECONDS_PER_SECOND,
            changed=default / NANOSECONDS_PER_SECOND,
        )

    async def mkdir(self, namespace: str, path: str) -> None:
        """Put an empty object that stands for a directory."""
        if path == ".":
            return
        _check_name(path)
        if await self._head(namespace, path) is not None:
            raise FileExistsError(errno.EEXIST, "is a file", path)
        await refuse_links(self._objects(namespace).links, path)
        await self._check_parents(namespace, path)
        try:
            await self._files(namespace, path).put(f"{path}/", b"", {})
        except ObjectNotFound:
            raise OSError(errno.EINVAL, "the store rejects this name", path) from None

    async def rename(self, namespace: str, path: str, target: str) -> None:
        """Copy the objects, then delete the old ones; a crash in between leaves both."""
        await self._delete_names(namespace, await self._copy(namespace, path, target))

    async def copy(self, namespace: str, path: str, target: str) -> None:
        """Copy an object, or all below a directory, within the bucket."""
        await self._copy(namespace, path, target)

    async def _copy(self, namespace: str, path: str, target: str) -> _Names:
        check_move(path, target)
        _check_name(target)
        names, objects = await self._names_of(namespace, path), self._objects(namespace)
        if await self._exists(namespace, target):
            raise FileExistsError(errno.EEXIST, "exists already", target)
        await refuse_links(objects.links, target)
        await self._check_parents(namespace, target)
        try:
            await objects.files.copy(path, target, names.files)
            await objects.links.copy(path, target, names.links)
        except ObjectNotFound:
            raise OSError(errno.EINVAL, "the store rejects this name", target) from None
        return names

    async def _exists(self, namespace: str, path: str) -> bool:
        return await self._describe(namespace, path) is not None or await self._is_directory(namespace, path)

    async def _names_of(self, namespace: str, path: str) -> _Names:
        """Return the objects of a file, a link or all in a directory; raises FileNotFoundError."""
        objects = self._objects(namespace)
        names = _Names(
            files=[*await objects.files.list_names(f"{path}/")],
            links=[*await objects.links.list_names(f"{path}/")],
        )
        found = await self._describe(namespace, path)
        if found is not None:
            (names.links if found.kind == "link" else names.files).append(path)
        if not names.files and not names.links:
            await self._check_parents(namespace, path)
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return names

    async def remove(self, namespace: str, path: str) -> None:
        """Delete an object, or all below a directory."""
        if path in {"", "."}:
            raise UnsafePath("the workspace itself is removed with its record")
        self._files(namespace, path)
        try:
            names = await self._names_of(namespace, path)
        except NotADirectoryError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None
        await self._delete_names(namespace, names)

    async def _delete_names(self, namespace: str, names: _Names) -> None:
        objects = self._objects(namespace)
        await objects.links.delete(names.links)
        await objects.files.delete(names.files)

    async def delete(self, namespace: str) -> None:
        """Delete all objects of a workspace."""
        for objects in (self._objects(namespace).links, self._objects(namespace).files):
            await objects.delete(await objects.list_names(""))

    async def list_namespaces(self) -> Sequence[str]:
        """Return the workspaces that have objects."""
        return sorted({*await self._list_namespaces(FILES), *await self._list_namespaces(LINKS)})

    async def _list_namespaces(self, kind: str) -> Sequence[str]:
        prefix, found = f"{self.bucket.prefix}{kind}", list[str]()
        with translate_errors(prefix, STORE):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket.bucket, Prefix=prefix, Delimiter="/"
            )
            async for page in pages:
                found += [one["Prefix"][len(prefix) :].rstrip("/") for one in page.get("CommonPrefixes", ())]
        return found

    async def check_access(self) -> None:
        """List, write and delete in the bucket; raises the error of the operation that fails."""
        await self.list_namespaces()
        probe = self.bucket.key(f"probe-{secrets.token_hex(8)}")
        with translate_errors("probe", STORE):
            await self.client.put_object(**probe, Body=b"")
            await self.client.delete_object(**probe)

    def _files(self, namespace: str, path: str) -> S3Prefix:
        """Return the files of a workspace, one of which is at `path`; raises UnsafePath."""
        if not is_plain_path(path):
            raise UnsafePath(f"{path!r} is not a path below the workspace")
        return self._objects(namespace).files

    async def _head(self, namespace: str, path: str) -> Any:
        return await self._files(namespace, path).head(path)

    async def _is_directory(self, namespace: str, path: str) -> bool:
        objects = self._objects(namespace)
        return await objects.files.has_any(f"{path}/") or await objects.links.has_any(f"{path}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """The objects of a path, by where they are."""

    files: list[str]
    links: list[str]


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
            kind="directory" if slash else "link" if seen.is_link else "file",
            size=0 if slash else seen.size,
            modified=written,
            changed=written,
        )
    return [entries[name] for name in sorted(entries)]
