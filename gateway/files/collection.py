"""Files for people: what agents and jobs leave in `outbox/` or hand over, taken once, told with an answer."""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import structlog

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Unavailable
from delivery.deliveries.transactions import Entry, Ledger
from delivery.errors import DeliveryError
from delivery.events.event import new_id
from gateway.config.setting_types import FileSettings
from gateway.conversations.notices import give_notice
from gateway.environments.resolver import Bench, Workbench
from gateway.files import media_types, workspace_outbox
from gateway.files.file_store import Shelf
from gateway.files.signed_links import Links
from gateway.files.workspace_outbox import Left, TooLarge, Yard
from gateway.store.conversations import files as store
from gateway.store.conversations.files import FileRow, FileState, Span
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn
from sandbox import registry
from sandbox.errors import SandboxError, Unsafe
from sandbox.port import Feature

log = structlog.get_logger(__name__)

GATHER_SECONDS = 60.0
SHOWN = 5
"""Files named one by one in a notice; the rest are counted."""


class Declined(Exception):
    """A file is not taken; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Whose files they are: a turn's, or a job's that is about to be settled (`since` it began)."""

    account: str
    conversation: str
    turn: str
    job: str | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What an event is to tell: files in their public shape, and what is to be said of those declined."""

    files: Sequence[dict[str, Any]] = ()
    notice: str | None = None

    async def tell(self, entry: Entry, conversation: str) -> None:
        """Tell people what they do not get."""
        if self.notice is not None:
            await give_notice(entry, conversation, self.notice)


class Outgoing:
    """Takes files, keeps their bytes, and gives them to the events that tell of them."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        workbench: Workbench,
        shelf: Shelf,
        links: Links,
        settings: FileSettings,
        checkpoint: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._workbench = workbench
        self._shelf = shelf
        self._links = links
        self._settings = settings
        self._checkpoint = checkpoint

    async def gather(self, turn: Turn, bench: Bench) -> None:
        """Take what this turn left in the outbox. What cannot be taken now is found again by a later turn."""
        if bench.workspace is None:
            return
        source = Source(account=turn.account, conversation=turn.conversation, turn=turn.id)
        yard = Yard(
            sandbox=lambda: self._workbench.sandbox(bench),
            directory=bench.spec.workspace if _is_mounted(bench.provider) else None,
        )
        if yard.directory is None and turn.trigger != "job" and not await self._worked(turn):
            return
        await self._guarded(yard, source)

    async def gather_job(self, job: Job) -> None:
        """Take what a job that has ended left in the outbox; its follow-up turn looks again."""
        if job.workspace is None:
            return
        source = Source(
            account=job.account,
            conversation=job.conversation,
            turn=job.turn,
            job=job.id,
            since=job.created_at,
        )
        mounted = _is_mounted(job.provider)
        yard = Yard(
            sandbox=lambda: self._workbench.sandbox_of(job),
            directory=self._workbench.directory(job.account, job.workspace) if mounted else None,
        )
        await self._guarded(yard, source)

    async def _worked(self, turn: Turn) -> bool:
        async with self._ledger.database.read() as connection:
            return bool(await store.spans(connection, turn.conversation, since=turn.created_at))

    async def _guarded(self, yard: Yard, source: Source) -> None:
        try:
            async with asyncio.timeout(GATHER_SECONDS):
                await self._take_all(yard, source)
        except (SandboxError, DeliveryError, Unavailable, OSError, TimeoutError) as error:
            log.warning("files.not_gathered", turn=source.turn, job=source.job, error=repr(error))

    async def _take_all(self, yard: Yard, source: Source) -> None:
        left = await workspace_outbox.look(yard)
        if not left:
            return
        began, slack = min(one.changed for one in left), yard.slack
        async with self._ledger.database.read() as connection:
            met = await store.known(connection, source.conversation, [one.path for one in left])
            spans = await store.spans(connection, source.conversation, since=began - slack)
        if source.since is not None:
            spans.append(Span(began=source.since, ended=utc_now()))
        for one in left:
            if one.version not in met.get(one.path, ()) and _is_ours(one, spans, slack):
                await self._take(yard, source, one)

    async def _take(self, yard: Yard, source: Source, left: Left) -> None:
        try:
            content = await self._content(yard, source, left.path, left.size)
        except Declined as error:
            await self._decline(source, left, str(error))
            return
        except (FileNotFoundError, IsADirectoryError, Unsafe):
            return  # it is gone again, or is no file any more
        identity = _digest("out", left.path, sha256(content).hexdigest())
        await self._stage(source, left.path, content, identity=identity, version=left.version)

    async def _content(self, yard: Yard, source: Source, path: str, size: int) -> bytes:
        """Return a file's bytes within the limits; raises Declined, SandboxError, OSError."""
        most = self._settings.max_bytes
        if size > most:
            raise Declined(
                f"it has {media_types.shown_size(size)}, and at most {media_types.shown_size(most)} are sent"
            )
        async with self._ledger.database.read() as connection:
            count = await store.counted(connection, source.conversation, turn=source.turn, job=source.job)
        if count >= self._settings.max_count:
            raise Declined(f"at most {self._settings.max_count} files are sent with one answer")
        try:
            return await workspace_outbox.read(yard, path, most=most)
        except TooLarge:
            raise Declined(f"it has more than {media_types.shown_size(most)}, which is the most") from None

    async def _stage(
        self, source: Source, path: str, content: bytes, *, identity: str, version: str, caption: str = ""
    ) -> FileRow:
        """Keep the bytes, then write down that the file waits for its event."""
        digest = await self._shelf.put(content)
        self._checkpoint("file.kept")
        name = media_types.clean_name(posixpath.basename(path))
        row = FileRow(
            id=new_id("fil"),
            account=source.account,
            conversation=source.conversation,
            turn=source.turn,
            job=source.job,
            state=FileState.STAGED,
            identity=identity,
            version=version,
            path=path,
            name=name,
            type=media_types.media_type(content[:65536], name),
            size=len(content),
            sha256=digest,
            caption=caption,
            created_at=utc_now(),
        )
        async with self._ledger.entry("file.stage") as entry:
            if not await store.add(entry.connection, row):
                await store.revise(entry.connection, source.conversation, identity, version=version)
        return row

    async def _decline(self, source: Source, left: Left, why: str) -> None:
        """Write down that a file is too much, once: people and the model are told with the next answer."""
        row = FileRow(
            id=new_id("fil"),
            account=source.account,
            conversation=source.conversation,
            turn=source.turn,
            job=source.job,
            state=FileState.REFUSED,
            identity=_digest("refused", left.path, left.version),
            version=left.version,
            path=left.path,
            name=media_types.clean_name(posixpath.basename(left.path)),
            type=media_types.BINARY,
            size=left.size,
            sha256=None,
            note=f"{left.path} was not sent to the person: {why}",
            created_at=utc_now(),
        )
        async with self._ledger.entry("file.stage") as entry:
            await store.add(entry.connection, row)

    async def offer(self, turn: Turn, bench: Bench, path: str, *, caption: str, key: str) -> FileRow:
        """Take a file that the agent hands over; raises Declined, SandboxError. `key` tells one call."""
        if bench.workspace is None:
            raise Declined("there is no workspace")
        source = Source(account=turn.account, conversation=turn.conversation, turn=turn.id)
        yard = Yard(sandbox=lambda: self._workbench.sandbox(bench), directory=None)
        plain = _plain(path, bench.spec.mount)
        identity = _digest("offer", key)
        async with self._ledger.database.read() as connection:
            earlier = await store.of_identity(connection, turn.conversation, identity)
        if earlier is not None:
            return earlier
        try:
            content = await self._content(yard, source, plain, 0)
        except OSError as error:
            raise Declined(_reason(error)) from None
        try:
            return await self._stage(
                source, plain, content, identity=identity, version="offered", caption=caption
            )
        except (DeliveryError, OSError) as error:
            raise Declined(f"it could not be kept: {error}") from None

    async def take(self, entry: Entry, conversation: str, *, job: str | None = None) -> Taken:
        """Return what waits to be told of a conversation's turns, or of a job, as told by this entry."""
        rows = await store.take_staged(entry.connection, conversation, job)
        declined = [row for row in rows if row.state is FileState.REFUSED]
        return Taken(
            files=[self._links.shape(row) for row in rows if row.state is FileState.STAGED],
            notice=_notice(declined) if declined else None,
        )

    async def of_turn(self, connection: Connection, turn: Turn) -> list[dict[str, Any]]:
        """Return the files a turn has brought, with those of the job that it tells of."""
        rows = await store.of_turn(connection, turn.conversation, turn.id, turn.job)
        return [self._links.shape(row) for row in rows]

    async def of_job(self, connection: Connection, job: Job) -> list[dict[str, Any]]:
        """Return the files a job has brought."""
        return (await self.of_jobs(connection, job.conversation, [job.id])).get(job.id, [])

    async def of_jobs(
        self, connection: Connection, conversation: str, jobs: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the files that jobs of one conversation have brought, by job."""
        shapes: dict[str, list[dict[str, Any]]] = {}
        for row in await store.of_jobs(connection, conversation, jobs):
            shapes.setdefault(str(row.job), []).append(self._links.shape(row))
        return shapes


def _is_mounted(provider: str) -> bool:
    plugin = registry.installed().get(provider)
    return plugin is not None and Feature.MOUNTS_WORKSPACE in plugin.features


def _is_ours(left: Left, spans: Sequence[Span], slack: timedelta) -> bool:
    """Say whether a file changed while something of its conversation ran that has ended.

    Conversations may share a workspace: what another one's job writes is not ours, and what a job still
    writes is not whole.
    """
    return any(span.began - slack <= left.changed <= span.ended + slack for span in spans)


def _plain(path: str, mount: str) -> str:
    """Return a path as the outbox's listing would name it; where it leads is the sandbox's to judge."""
    if path.startswith(f"{mount}/"):
        path = path.removeprefix(f"{mount}/")
    return posixpath.normpath(path) if path else path


_REASONS = {
    errno.ENOENT: "there is no such file in the workspace",
    errno.EISDIR: "it is a directory: pack it into an archive first",
    errno.ENOTDIR: "a part of the path is no directory",
    errno.EACCES: "it may not be read",
    errno.ENAMETOOLONG: "its name is too long",
}


def _reason(error: OSError) -> str:
    return _REASONS.get(error.errno or 0, f"it cannot be read: {error.strerror or type(error).__name__}")


def _notice(declined: Sequence[FileRow]) -> str:
    named = [f"`{row.path.replace('`', chr(39))}`: {(row.note or '').partition(': ')[2]}" for row in declined]
    more = f"\n- and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    listed = "\n".join(f"- {line}" for line in named[:SHOWN])
    return f"I could not send these files; they lie in the workspace:\n\n{listed}{more}"


def _digest(*parts: str) -> str:
    return sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
