"""Contents of the files that a turn's workspaces held at its end, put back or compared.

A turn keeps the contents of the files that it changed. What it left as it was is found in the latest earlier
turn of the conversation that changed it. Contents that were too large, or have expired, are missing.
"""

from __future__ import annotations

import asyncio
import io
import stat
import tarfile
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from delivery.events.event import rfc3339
from gateway.conversations.text_change import TextChange, render_diff
from gateway.files.storage.file_store import FileStore
from gateway.files.turn_trees import ADDED, DELETED, TreeFile, TreeOwner, TurnTrees
from gateway.store.turns.turns import Turn
from sandbox.paths import file_time
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.replica import ReplicaFile
from sandbox.workspaces.sync_plan import NANOSECONDS_PER_SECOND, FileListing, FileStat

MAX_TURNS = 100
"""Turns of a conversation, this one included, in which contents are searched."""

MAX_COMPARED_BYTES = 512 * 1024
"""The largest file whose lines are compared."""

MAX_DIFF_BYTES = 1024 * 1024

FilePlace = tuple[str, str]
"""A workspace as the tree names it, and a path in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The content of a file, or the target of a link, as a turn left it."""

    content: bytes
    mode: int


@dataclass(slots=True, kw_only=True)
class RestoreResult:
    """Paths by what a restore did: written, removed, equal already, or no longer stored."""

    restored: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class TurnContents:
    """Reads what the turns of a conversation kept."""

    def __init__(self, trees: TurnTrees, file_store: FileStore) -> None:
        self._trees = trees
        self._file_store = file_store

    async def load(self, turn: Turn, wanted: Sequence[TreeFile]) -> Mapping[FilePlace, StoredFile]:
        """Return the contents of files of a turn's tree, those that are stored."""
        open_ = {(one.workspace, one.path): one for one in wanted}
        found: dict[FilePlace, StoredFile] = {}
        for earlier in await self._trees.list_with_trees(turn, limit=MAX_TURNS):
            if not open_:
                break
            tree = await self._trees.load(earlier)
            known = {(one.workspace, one.path): one for one in tree.files} if tree else {}
            kept = [place for place, one in open_.items() if _is_kept(one, known.get(place))]
            found |= await self._read(earlier, kept, {place for place, one in known.items() if one.archived})
            for place in kept:
                open_.pop(place)
        return found

    async def _read(
        self, turn: TreeOwner, wanted: Sequence[FilePlace], archived: Collection[FilePlace]
    ) -> Mapping[FilePlace, StoredFile]:
        row = await self._trees.archive_row(turn) if wanted else None
        content = await self._file_store.read_blob(row.sha256) if row and row.sha256 else None
        return await asyncio.to_thread(_unpack, content, wanted, archived) if content else {}

    async def before(self, turn: Turn, changed: Sequence[TreeFile]) -> Mapping[FilePlace, StoredFile]:
        """Return the contents that changed files had before a turn, those that an earlier turn kept."""
        open_, found = {(one.workspace, one.path) for one in changed}, dict[FilePlace, StoredFile]()
        for earlier in (await self._trees.list_with_trees(turn, limit=MAX_TURNS))[1:]:
            tree = await self._trees.load(earlier)
            known = [one for one in (tree.files if tree else ()) if one.change]
            archived = {(one.workspace, one.path) for one in known if one.archived}
            found |= await self._read(earlier, sorted(open_ & archived), archived)
            open_ -= {(one.workspace, one.path) for one in known}
            if not open_:
                break
        return found


def _is_kept(wanted: TreeFile, seen: TreeFile | None) -> bool:
    """Return whether an archive has the version of a file that a later tree lists."""
    return (
        seen is not None
        and seen.archived
        and (seen.size, seen.modified, seen.kind) == (wanted.size, wanted.modified, wanted.kind)
    )


def _unpack(
    archive: bytes, wanted: Collection[FilePlace], archived: Collection[FilePlace]
) -> Mapping[FilePlace, StoredFile]:
    found: dict[FilePlace, StoredFile] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        members = {member.name: member for member in tar}
        prefixed = all(f"{workspace}/{path}" in members for workspace, path in archived)
        for workspace, path in wanted:
            member = members.get(f"{workspace}/{path}" if prefixed else path)
            if member is None:
                continue
            if member.issym():
                target = member.linkname.encode("utf-8", "surrogateescape")
                found[workspace, path] = StoredFile(content=target, mode=stat.S_IFLNK)
            elif (file := tar.extractfile(member)) is not None:
                found[workspace, path] = StoredFile(content=file.read(), mode=member.mode & 0o755)
    return found


async def restore(
    workspace: WorkspaceStore,
    namespace: str,
    files: Sequence[TreeFile],
    contents: Mapping[FilePlace, StoredFile],
    *,
    remove_others: bool,
) -> RestoreResult:
    """Write the files of one workspace that differ; with `remove_others` remove those not listed."""
    result, replica = RestoreResult(), workspace.replica(namespace)
    listed = await replica.list()
    wanted = {one.path: one for one in files if one.change != DELETED}
    now = time.time_ns()
    written: dict[str, ReplicaFile] = {}
    for path, one in wanted.items():
        kept = contents.get((one.workspace, path))
        if kept is None:
            (result.unchanged if _is_listed_alike(one, listed.get(path)) else result.missing).append(path)
            continue
        described = FileStat(len(kept.content), now, kept.mode)
        if await _holds(workspace, namespace, listed, path, kept):
            result.unchanged.append(path)
        else:
            written[path] = (path, kept.content, described)
    if remove_others:
        result.removed = sorted(
            path for path, seen in listed.items() if path not in wanted and not seen.is_directory
        )
        await replica.remove(result.removed)
    done = await replica.write(_yield_all(written.values()))
    result.restored = sorted(done)
    result.missing += sorted(written.keys() - done.keys())
    return result


async def _yield_all(files: Collection[ReplicaFile]) -> AsyncIterator[ReplicaFile]:
    for one in files:
        yield one


def _is_listed_alike(wanted: TreeFile, seen: FileStat | None) -> bool:
    if seen is None:
        return False
    modified = rfc3339(file_time(seen.modified / NANOSECONDS_PER_SECOND))
    return (seen.size, modified) == (wanted.size, wanted.modified)


async def _holds(
    workspace: WorkspaceStore, namespace: str, listed: FileListing, path: str, kept: StoredFile
) -> bool:
    """Return whether a workspace has this content at a path."""
    seen = listed.get(path)
    if seen is None or seen.size != len(kept.content) or seen.is_link != stat.S_ISLNK(kept.mode):
        return False
    async for _path, content, _stat in workspace.replica(namespace).read({path: seen}):
        return content == kept.content
    return False


def unified_diff(
    changed: Sequence[TreeFile],
    before: Mapping[FilePlace, StoredFile],
    after: Mapping[FilePlace, StoredFile],
) -> str:
    """Return the changes of text files as a unified diff, and one line for each other file."""
    diffs, size = list[str](), 0
    for one in changed:
        place = (one.workspace, one.path)
        diffs.append(_diff_of(one, before.get(place), after.get(place)))
        size += len(diffs[-1])
        if size > MAX_DIFF_BYTES:
            return "".join(diffs)[:MAX_DIFF_BYTES] + "\n(the rest of the changes is left out)\n"
    return "".join(diffs)


def _diff_of(one: TreeFile, before: StoredFile | None, after: StoredFile | None) -> str:
    old, new = _text_of(before), _text_of(after)
    known = (before is not None or one.change == ADDED) and (after is not None or one.change == DELETED)
    if old is None or new is None or not known:
        return f"{one.change}: {one.path} ({one.size} bytes; its lines cannot be compared)\n"
    was = "/dev/null" if one.change == ADDED else f"a/{one.path}"
    now = "/dev/null" if one.change == DELETED else f"b/{one.path}"
    found = list(render_diff(TextChange(before=old, after=new)))
    return "".join(f"{line}\n" for line in (f"--- {was}", f"+++ {now}", *found)) if found else ""


def _text_of(kept: StoredFile | None) -> str | None:
    """Return a file's text; None for a large or binary file. A file that is not there has none."""
    if kept is None:
        return ""
    if len(kept.content) > MAX_COMPARED_BYTES or b"\0" in kept.content:
        return None
    return kept.content.decode("utf-8", "replace")
