"""Files for people: collected once from `outbox/` or the `deliver_file` tool, and attached to a reply."""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import structlog

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, DatabaseUnavailable
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.errors import DeliveryError
from delivery.events.event import new_id
from gateway.config.file_settings import FileSettings
from gateway.conversations.notices import post_notice
from gateway.environments.environment import Environment
from gateway.environments.resolver import EnvironmentResolver
from gateway.files import media_types, workspace_outbox
from gateway.files.collection_notices import render_delayed, render_rejected
from gateway.files.signed_links import SignedLinks
from gateway.files.storage.file_store import FileStore
from gateway.files.storage.storage_quota import StorageFull
from gateway.files.turn_trees import TurnTrees
from gateway.files.workspace_outbox import FileTooLarge, OutboxFile, OutboxLocation
from gateway.store.conversations import files as store
from gateway.store.conversations import messages
from gateway.store.conversations.files import ActivitySpan, FileRow, FileState
from gateway.store.turns import jobs
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn
from sandbox import registry
from sandbox.errors import SandboxError, UnsafePath
from sandbox.model import is_external

log = structlog.get_logger(__name__)

COLLECT_TIMEOUT = 60.0
WRITING = timedelta(seconds=1)
"""A closed file that is changed within this time, while a job runs in its workspace, is being written."""
WRITING_UNSEEN = timedelta(seconds=5)
"""The same for a file of which nobody can tell whether a process has it open."""


class FileRejected(Exception):
    """A file is not sent; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOwner:
    """The owner of files: a turn, or a job that is about to be settled (`since` its start).

    `workspace` is the id of the workspace in whose outbox they are.
    """

    account: str
    conversation: str
    turn: str
    workspace: str = ""
    job: str | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedFiles:
    """Files for an event in their public form, and a notice about the rejected ones."""

    files: Sequence[dict[str, Any]] = ()
    notice: str | None = None

    async def emit_notice(self, tx: Transaction, conversation: str) -> None:
        """Post the notice about rejected files, if any."""
        if self.notice is not None:
            await post_notice(tx, conversation, self.notice)


class FileCollector:
    """Collects files, stores their bytes, and attaches them to events."""

    def __init__(
        self,
        *,
        transactions: Transactions,
        environment_resolver: EnvironmentResolver,
        file_store: FileStore,
        links: SignedLinks,
        trees: TurnTrees,
        settings: FileSettings,
        checkpoint: Callable[[str], None],
    ) -> None:
        self.trees = trees
        self._transactions = transactions
        self._environment_resolver = environment_resolver
        self._file_store = file_store
        self._links = links
        self._settings = settings
        self._checkpoint = checkpoint

    async def collect(self, turn: Turn, environment: Environment) -> None:
        """Collect the turn's files in the outbox. A later turn collects those that fail now."""
        if environment.workspace is None:
            return
        owner = FileOwner(
            account=turn.account,
            conversation=turn.conversation,
            turn=turn.id,
            workspace=environment.workspace,
        )
        spec = environment.spec
        mounted = registry.mounts_workspace(environment.provider, external=spec.external)
        location = OutboxLocation(
            sandbox=lambda: self._environment_resolver.files(environment),
            directory=spec.workspace if mounted else None,
        )
        if location.directory is None and turn.trigger != "job" and not await self._ran_commands(turn):
            return
        await self._collect_within_timeout(location, owner)

    async def collect_job(self, job: Job) -> None:
        """Collect an ended job's files in the outbox; its follow-up turn collects again."""
        if job.workspace is None:
            return
        owner = FileOwner(
            account=job.account,
            conversation=job.conversation,
            turn=job.turn,
            workspace=job.workspace,
            job=job.id,
            since=job.created_at,
        )
        mounted = registry.mounts_workspace(job.provider, external=is_external(job.sandbox))
        location = OutboxLocation(
            sandbox=lambda: self._environment_resolver.sandbox_of_job(job),
            directory=self._environment_resolver.directory(job.account, job.workspace) if mounted else None,
        )
        await self._collect_within_timeout(location, owner)

    async def _ran_commands(self, turn: Turn) -> bool:
        async with self._transactions.database.read() as connection:
            return bool(await store.list_activity_spans(connection, turn.conversation, since=turn.created_at))

    async def _collect_within_timeout(self, location: OutboxLocation, owner: FileOwner) -> None:
        uncollected = list[str]()
        try:
            async with asyncio.timeout(COLLECT_TIMEOUT):
                await self._collect_all(location, owner, uncollected)
        except (SandboxError, DeliveryError, DatabaseUnavailable, OSError, TimeoutError) as error:
            log.warning("files.collect_failed", turn=owner.turn, job=owner.job, error=repr(error))
            # The files of a job are collected again by its follow-up turn.
            if uncollected and owner.job is None and isinstance(error, OSError):
                await self._report_delay(owner, uncollected, error)

    async def _report_delay(self, owner: FileOwner, paths: Sequence[str], error: Exception) -> None:
        """Tell people, once in a turn, which of its files are sent later."""
        message = f"msg_{_digest('delayed', owner.turn)[:26]}"
        with suppress(DatabaseUnavailable):
            async with self._transactions.begin("file.delay") as tx:
                if await messages.get_by_id(tx.connection, message) is None:
                    text = render_delayed(paths, error)
                    await post_notice(tx, owner.conversation, text, turn=owner.turn, message=message)

    async def _collect_all(self, location: OutboxLocation, owner: FileOwner, uncollected: list[str]) -> None:
        """Collect the files; `uncollected` has the paths of those that are due and not collected yet."""
        files = await workspace_outbox.list_files(location)
        if not files:
            return
        began, slack = min(one.changed_at for one in files), location.clock_tolerance
        async with self._transactions.database.read() as connection:
            known = await store.known_versions(connection, owner.conversation, [one.path for one in files])
            spans = await store.list_activity_spans(connection, owner.conversation, since=began - slack)
        if owner.since is not None:
            spans.append(ActivitySpan(started_at=owner.since, ended_at=utc_now()))
        due = [
            one
            for one in files
            if one.version not in known.get(one.path, ()) and _is_from_conversation(one, spans, slack)
        ]
        closed = await self._without_open(location, owner, due)
        uncollected += [one.path for one in closed]
        for one in closed:
            await self._collect_file(location, owner, one)
            uncollected.remove(one.path)

    async def _without_open(
        self, location: OutboxLocation, owner: FileOwner, due: Sequence[OutboxFile]
    ) -> Sequence[OutboxFile]:
        """Return the files without those that another job is writing: a later collection finds them.

        That is a file that a process has open for writing, and one that changes meanwhile.
        """
        if not due:
            return due
        async with self._transactions.database.read() as connection:
            if not await jobs.has_running(connection, owner.account, owner.workspace, other_than=owner.job):
                return due
        opened = await workspace_outbox.find_open(location, [one.path for one in due if one.is_utf8])
        closed = [one for one in due if not opened.get(one.path)]
        quiet = WRITING_UNSEEN if None in opened.values() else WRITING
        if all(one.changed_at < utc_now() - quiet - location.clock_tolerance for one in closed):
            return closed
        await asyncio.sleep(quiet.total_seconds())
        versions = {one.path: one.version for one in await workspace_outbox.list_files(location)}
        return [one for one in closed if versions.get(one.path) == one.version]

    async def _collect_file(self, location: OutboxLocation, owner: FileOwner, file: OutboxFile) -> None:
        if not file.is_utf8:
            await self._reject(owner, file, "its name is not valid UTF-8: rename it")
            return
        try:
            content = await self._read(location, owner, file.path, file.size)
        except FileRejected as error:
            await self._reject(owner, file, str(error))
            return
        except (FileNotFoundError, IsADirectoryError, UnsafePath):
            return  # it was deleted, or is not a file any more
        identity = _digest("out", file.path, sha256(content).hexdigest())
        try:
            await self._stage(owner, file.path, content, identity=identity, version=file.version)
        except StorageFull as error:
            await self._reject(owner, file, str(error))

    async def _read(self, location: OutboxLocation, owner: FileOwner, path: str, size: int) -> bytes:
        """Return a file's bytes within the limits; raises FileRejected, SandboxError, OSError."""
        most = self._settings.max_bytes
        if size > most:
            raise FileRejected(
                f"it has {media_types.render_size(size)}; the limit is {media_types.render_size(most)}"
            )
        async with self._transactions.database.read() as connection:
            count = await store.count(connection, owner.conversation, turn=owner.turn, job=owner.job)
        if count >= self._settings.max_count:
            raise FileRejected(f"at most {self._settings.max_count} files are sent with one answer")
        try:
            return await workspace_outbox.read(location, path, limit=most)
        except FileTooLarge:
            raise FileRejected(f"it has more than {media_types.render_size(most)}") from None

    async def _stage(
        self, owner: FileOwner, path: str, content: bytes, *, identity: str, version: str, caption: str = ""
    ) -> FileRow:
        """Store the bytes, then insert the file's row, which waits for an event."""
        digest = await self._file_store.write_blob(owner.account, content)
        self._checkpoint("file.kept")
        name = media_types.sanitize_name(posixpath.basename(path))
        row = FileRow(
            id=new_id("fil"),
            account=owner.account,
            conversation=owner.conversation,
            turn=owner.turn,
            job=owner.job,
            state=FileState.STAGED,
            identity=identity,
            version=version,
            path=path,
            name=name,
            type=media_types.detect_media_type(content[:65536], name),
            size=len(content),
            sha256=digest,
            caption=caption,
            created_at=utc_now(),
        )
        async with self._transactions.begin("file.stage") as tx:
            if not await store.add(tx.connection, row):
                await store.set_version(tx.connection, owner.conversation, identity, version=version)
        return row

    async def _reject(self, owner: FileOwner, file: OutboxFile, reason: str) -> None:
        """Record a rejected file once; people and the model are notified with the next reply."""
        row = FileRow(
            id=new_id("fil"),
            account=owner.account,
            conversation=owner.conversation,
            turn=owner.turn,
            job=owner.job,
            state=FileState.REFUSED,
            identity=_digest("refused", file.path, file.version),
            version=file.version,
            path=file.path,
            name=media_types.sanitize_name(posixpath.basename(file.path)),
            type=media_types.BINARY,
            size=file.size,
            sha256=None,
            note=f"{file.path} was not sent to the person: {reason}",
            created_at=utc_now(),
        )
        async with self._transactions.begin("file.stage") as tx:
            await store.add(tx.connection, row)

    async def deliver(
        self,
        turn: Turn,
        environment: Environment,
        path: str,
        *,
        caption: str,
        key: str,
        other: tuple[str, str] | None = None,
    ) -> FileRow:
        """Collect a file that a tool sends, once per `key`; raises FileRejected, SandboxError.

        It goes out with the turn's answer, or with a message to an `other` conversation: (id, tool call).
        """
        if environment.workspace is None:
            raise FileRejected("there is no workspace")
        conversation, call = other or (turn.conversation, None)
        owner = FileOwner(account=turn.account, conversation=conversation, turn=turn.id, job=call)
        location = OutboxLocation(
            sandbox=lambda: self._environment_resolver.sandbox(environment), directory=None
        )
        relative_path = _normalize_path(path, environment.spec.mount)
        identity = _digest("offer", key)
        async with self._transactions.database.read() as connection:
            earlier = await store.get_by_identity(connection, conversation, identity)
        if earlier is not None:
            return earlier
        try:
            content = await self._read(location, owner, relative_path, 0)
        except OSError as error:
            raise FileRejected(_reason(error)) from None
        try:
            return await self._stage(
                owner, relative_path, content, identity=identity, version="offered", caption=caption
            )
        except (StorageFull, DeliveryError, OSError) as error:
            raise FileRejected(f"it could not be stored: {error}") from None

    async def attach(self, tx: Transaction, conversation: str, *, job: str | None = None) -> CollectedFiles:
        """Attach the waiting files of a conversation's turns, or of a job, to this transaction's event."""
        rows = await store.collect_staged(tx.connection, conversation, job)
        rejected = [row for row in rows if row.state is FileState.REFUSED]
        return CollectedFiles(
            files=[self._links.to_response(row) for row in rows if row.state is FileState.STAGED],
            notice=render_rejected(rejected) if rejected else None,
        )

    async def list_for_turn(self, connection: Connection, turn: Turn) -> list[dict[str, Any]]:
        """Return the files of a turn and, for a follow-up turn, of its job."""
        rows = await store.list_for_turn(connection, turn.conversation, turn.id, turn.job)
        return [self._links.to_response(row) for row in rows]

    async def list_for_job(self, connection: Connection, job: Job) -> list[dict[str, Any]]:
        """Return the files of a job."""
        return (await self.list_for_jobs(connection, job.conversation, [job.id])).get(job.id, [])

    async def list_for_jobs(
        self, connection: Connection, conversation: str, jobs: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the files of jobs of one conversation, by job id."""
        shapes: dict[str, list[dict[str, Any]]] = {}
        for row in await store.list_for_jobs(connection, conversation, jobs):
            shapes.setdefault(str(row.job), []).append(self._links.to_response(row))
        return shapes


def _is_from_conversation(
    file: OutboxFile, spans: Sequence[ActivitySpan], clock_tolerance: timedelta
) -> bool:
    """Return whether a file changed while a turn or job of the conversation ran that has ended.

    Conversations may share a workspace: files of another conversation's jobs are not collected, and files
    of a running job may be incomplete.
    """
    return any(
        span.started_at - clock_tolerance <= file.changed_at <= span.ended_at + clock_tolerance
        for span in spans
    )


def _normalize_path(path: str, mount: str) -> str:
    """Return a path relative to the workspace; the sandbox checks where it leads."""
    if path.startswith(f"{mount}/"):
        path = path.removeprefix(f"{mount}/")
    return posixpath.normpath(path) if path else path


_REASONS = {
    errno.ENOENT: "there is no such file in the workspace",
    errno.EISDIR: "it is a directory: pack it into an archive first",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.EACCES: "it cannot be read: permission denied",
    errno.ENAMETOOLONG: "its name is too long",
}


def _reason(error: OSError) -> str:
    return _REASONS.get(error.errno or 0, f"it cannot be read: {error.strerror or type(error).__name__}")


def _digest(*parts: str) -> str:
    return sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
