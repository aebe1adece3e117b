"""File trees: what the workspaces of a turn held at its end, and what the turn changed.

A turn that changes files has a tree. It is compared with the listing before the turn's first tool call. Both
listings are those of the workspace store, so that every provider and store is treated alike. The tree and an
archive of the files that were added or modified are stored as files of the conversation: they count against
the account's storage, expire after `files.retention`, and are deleted with the conversation. A tree that
cannot be stored is left out.
"""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from typing import Protocol

import structlog

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database, DatabaseUnavailable
from delivery.errors import DeliveryError
from delivery.events.event import new_id, rfc3339
from gateway.environments.environment import Environment
from gateway.environments.workspaces import Workspaces
from gateway.files.storage.file_store import FileStore
from gateway.files.storage.storage_quota import StorageFull
from gateway.store.conversations import files as store
from gateway.store.conversations.files import FileRow, FileState
from gateway.store.turns.turns import Turn
from sandbox.errors import SandboxError
from sandbox.paths import file_time
from sandbox.workspaces.replica import Replica
from sandbox.workspaces.sync_plan import NANOSECONDS_PER_SECOND, FileListing, FileStat

log = structlog.get_logger(__name__)

MAX_ENTRIES = 5000
"""Files of one tree; changed ones come first."""

MAX_ARCHIVED_FILES = 500

MAX_LISTED = 200_000
"""Files in the listings of all running turns."""

MAX_TURNS = 5000
"""Turns whose listings are in memory."""

SECONDS = 30.0
"""Seconds that the end of a turn waits for its tree."""

ADDED, MODIFIED, DELETED = "added", "modified", "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFile:
    """A file or link at a turn's end; `change` is added, modified, deleted or None; `archived`: stored."""

    path: str
    size: int
    modified: str
    change: str | None = None
    workspace: str = ""
    archived: bool = False
    kind: str = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTree:
    """The files of a turn by workspace and path; `truncated`: some are left out."""

    files: Sequence[TreeFile] = ()
    truncated: bool = False


@dataclass(slots=True, kw_only=True)
class _Baseline:
    """A workspace before the first tool call of a turn."""

    namespace: str
    files: FileListing


class TreeOwner(Protocol):
    """A turn, as far as its tree is named by it."""

    @property
    def id(self) -> str:
        """The turn's id."""
        ...

    @property
    def conversation(self) -> str:
        """The conversation that holds the tree."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeKey:
    """A turn of a conversation that has a tree."""

    id: str
    conversation: str


class TurnTrees:
    """Lists the workspaces of running turns and stores their trees. With a `limit` of 0 there are none.

    What several turns change in one workspace at the same time is in the trees of all of them.
    """

    def __init__(
        self, database: Database, workspaces: Workspaces, file_store: FileStore, *, limit: int
    ) -> None:
        self._database = database
        self._workspaces = workspaces
        self._file_store = file_store
        self._limit = limit
        self._baselines: dict[str, dict[str, _Baseline]] = {}

    async def begin(self, turn: Turn, environments: Mapping[str, Environment]) -> None:
        """List the workspaces before the turn's first tool call; later calls do nothing.

        The listings are in memory until the turn ends, also while it waits for an approval. If they become
        too many, the oldest are forgotten.
        """
        if self._limit == 0 or turn.id in self._baselines:
            return
        known: dict[str, _Baseline] = {}
        self._baselines[turn.id] = known
        for name, one in environments.items():
            if one.workspace is None or one.spec.read_only or one.files_only:
                continue
            space = one.spec.namespace
            try:
                async with asyncio.timeout(SECONDS):
                    known[name or one.workspace] = _Baseline(namespace=space, files=await self._list(space))
            except (SandboxError, OSError, TimeoutError) as error:
                log.warning("turn_tree.not_listed", turn=turn.id, error=repr(error))
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        sizes = {
            turn: sum(len(one.files) for one in known.values()) for turn, known in self._baselines.items()
        }
        total = sum(sizes.values())
        for turn, size in sizes.items():
            if total <= MAX_LISTED and len(self._baselines) <= MAX_TURNS:
                return
            self._baselines[turn] = {}
            total -= size
            if len(self._baselines) > MAX_TURNS:
                del self._baselines[turn]

    async def _list(self, namespace: str) -> FileListing:
        listed = await self._workspaces.store.replica(namespace).list()
        return {path: seen for path, seen in listed.items() if not seen.is_directory}

    async def keep(self, turn: Turn) -> None:
        """Store the tree of a turn whose files are saved; never raises for what may fail."""
        baselines = self._baselines.pop(turn.id, None)
        if not baselines:
            return
        try:
            async with asyncio.timeout(SECONDS):
                await self._keep(turn, baselines)
        except (
            StorageFull,
            SandboxError,
            DeliveryError,
            DatabaseUnavailable,
            OSError,
            TimeoutError,
        ) as error:
            log.warning("turn_tree.not_stored", turn=turn.id, error=repr(error))

    async def _keep(self, turn: Turn, baselines: Mapping[str, _Baseline]) -> None:
        found, archive = list[TreeFile](), _Archive(self._limit)
        for name, baseline in baselines.items():
            listed = await self._list(baseline.namespace)
            changes = _changes(turn, baseline.files, listed)
            prefix = f"{name}/" if len(baselines) > 1 else ""
            archived = await archive.add(
                self._workspaces.store.replica(baseline.namespace), changes, listed, prefix=prefix
            )
            found += _entries(name, baseline.files, listed, changes, archived)
        if not any(one.change for one in found):
            return
        found.sort(key=lambda one: (one.change is None, one.workspace, one.path))
        tree = TurnTree(files=found[:MAX_ENTRIES], truncated=len(found) > MAX_ENTRIES)
        rows = [await self._store(turn, "files.json", json.dumps(asdict(tree)).encode())]
        if archive.count:
            rows.append(await self._store(turn, "files.tar.gz", await archive.close()))
        async with self._database.begin() as connection:
            for row in rows:
                await store.replace(connection, row)

    async def _store(self, turn: Turn, name: str, content: bytes) -> FileRow:
        digest = await self._file_store.write_blob(turn.account, content)
        return FileRow(
            id=new_id("fil"),
            account=turn.account,
            conversation=turn.conversation,
            turn=turn.id,
            state=FileState.TREE,
            identity=_identity(turn.id, name),
            name=name,
            type="application/json" if name.endswith(".json") else "application/gzip",
            size=len(content),
            sha256=digest,
            created_at=utc_now(),
        )

    async def list_with_trees(self, turn: TreeOwner, *, limit: int) -> Sequence[TreeOwner]:
        """Return the turns of a conversation that have trees, from this one back."""
        async with self._database.read() as connection:
            last = await _get(connection, turn, "files.json")
            rows = await store.list_trees(connection, last, limit=limit) if last else []
        return [TreeKey(id=row.turn or "", conversation=turn.conversation) for row in rows]

    async def load(self, turn: TreeOwner) -> TurnTree | None:
        """Return the tree of a turn; None if it has none or it expired."""
        row = await self.archive_row(turn, "files.json")
        content = await self._file_store.read_blob(row.sha256) if row and row.sha256 else None
        if content is None:
            return None
        stored = json.loads(content)
        return TurnTree(files=[TreeFile(**one) for one in stored["files"]], truncated=stored["truncated"])

    async def archive_row(self, turn: TreeOwner, name: str = "files.tar.gz") -> FileRow | None:
        """Return the row of a turn's archive (or tree), if there is one."""
        async with self._database.read() as connection:
            return await _get(connection, turn, name)


async def _get(connection: Connection, turn: TreeOwner, name: str) -> FileRow | None:
    return await store.get_by_identity(connection, turn.conversation, _identity(turn.id, name))


def _identity(turn: str, name: str) -> str:
    return sha256(f"tree\n{turn}\n{name}".encode()).hexdigest()


def _changes(turn: Turn, before: FileListing, now: FileListing) -> dict[str, str]:
    """Return the changes by path; after a restart, files that are newer than the turn count as modified."""
    changed = dict.fromkeys(before.keys() - now.keys(), DELETED)
    for path, seen in now.items():
        if path not in before:
            changed[path] = ADDED
        elif not seen.is_same(before[path]) or _was_changed_by_earlier_attempt(turn, seen):
            changed[path] = MODIFIED
    return changed


def _was_changed_by_earlier_attempt(turn: Turn, seen: FileStat) -> bool:
    return (turn.attempt > 1 or turn.paused is not None) and _time(seen) >= turn.created_at


def _time(seen: FileStat) -> datetime:
    return file_time(seen.modified / NANOSECONDS_PER_SECOND)


def _entries(
    workspace: str,
    before: FileListing,
    now: FileListing,
    changes: Mapping[str, str],
    archived: frozenset[str],
) -> Sequence[TreeFile]:
    return [
        TreeFile(
            path=path,
            size=seen.size,
            modified=rfc3339(_time(seen)),
            change=changes.get(path),
            workspace=workspace,
            archived=path in archived,
            kind="link" if seen.is_link else "file",
        )
        for path, seen in {**{path: before[path] for path in before.keys() - now.keys()}, **now}.items()
    ]


class _Archive:
    """A gzip tar of files, at most `limit` bytes of content."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w:gz", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by `close`
        self.count = 0

    async def add(
        self,
        replica: Replica,
        changes: Mapping[str, str],
        listed: FileListing,
        *,
        prefix: str,
    ) -> frozenset[str]:
        """Add the files that still exist, the smallest first, as far as they fit; return their paths."""
        wanted = sorted(
            (path for path in changes if path in listed), key=lambda path: (listed[path].size, path)
        )
        chosen: dict[str, FileStat] = {}
        for path in wanted[: MAX_ARCHIVED_FILES - self.count]:
            if listed[path].size > self._left:
                break
            self._left -= listed[path].size
            chosen[path] = listed[path]
        added = set[str]()
        async for path, content, seen in replica.read(chosen):
            await asyncio.to_thread(self._add_one, prefix + path, content, seen)
            added.add(path)
        self.count += len(added)
        return frozenset(added)

    def _add_one(self, name: str, content: bytes, seen: FileStat) -> None:
        member = tarfile.TarInfo(name)
        member.mtime = int(_time(seen).timestamp())
        if seen.is_link:
            member.type, member.linkname = tarfile.SYMTYPE, content.decode("utf-8", "surrogateescape")
        else:
            member.size, member.mode = len(content), seen.mode & 0o755
        self._tar.addfile(member, io.BytesIO(content) if seen.is_regular else None)

    async def close(self) -> bytes:
        """Return the complete archive."""
        await asyncio.to_thread(self._tar.close)
        return self._buffer.getvalue()
