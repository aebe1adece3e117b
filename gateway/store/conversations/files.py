"""SQL of files and of their stored bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    or_,
    select,
    text,
    update,
)

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.tables import blobs, files, jobs, steps, turns


class FileState(StrEnum):
    """The state of a file.

    Outgoing: staged → told (its event is committed); refused → declined (the refusal was reported).
    Incoming: uploaded (belongs to no turn yet), arriving → received or missing.
    Neither: tree (what a turn's workspaces held at its end), uploading (a workspace file whose parts arrive;
    `name` is its workspace, `version` its size), part (its `turn` is the upload).
    """

    STAGED = "staged"
    EMITTED = "told"
    REFUSED = "refused"
    DECLINED = "declined"
    UPLOADED = "uploaded"
    ARRIVING = "arriving"
    RECEIVED = "received"
    MISSING = "missing"
    TREE = "tree"
    UPLOADING = "uploading"
    PART = "part"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """A stored file; `sha256` is None when no bytes are stored. `path` is in the workspace, or empty."""

    id: str
    account: str
    conversation: str | None
    state: FileState
    identity: str
    name: str
    type: str
    size: int
    sha256: str | None
    created_at: datetime
    turn: str | None = None
    job: str | None = None
    version: str = ""
    path: str = ""
    caption: str = ""
    note: str | None = None
    noted_turn: str | None = None
    expires_at: datetime | None = None
    purpose: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySpan:
    """A time in which something of a conversation ran in its sandbox, and has ended."""

    started_at: datetime
    ended_at: datetime


_COLUMNS = [files.c[name] for name in FileRow.__dataclass_fields__]
WAITS_FOR_ANSWER = and_(
    (files.c.state == str(FileState.STAGED)) | (files.c.state == str(FileState.REFUSED)),
    files.c.job.is_(None),
)
"""A file of a turn that the conversation's next answer sends, or says to be refused."""

_STAGED_BY_TURNS = (
    select(*_COLUMNS)
    .where(files.c.conversation == bindparam("of"), WAITS_FOR_ANSWER)
    .order_by(files.c.created_at, files.c.id)
)


_EMITTED = (
    select(*_COLUMNS)
    .where(files.c.conversation == bindparam("of"), files.c.state == str(FileState.EMITTED))
    .order_by(files.c.created_at, files.c.id)
)
_IS_OF_TURN = (files.c.turn == bindparam("turn_of")) & files.c.job.is_(None)
_EMITTED_BY_TURN = _EMITTED.where(_IS_OF_TURN)
_EMITTED_BY_FOLLOW_UP = _EMITTED.where(or_(_IS_OF_TURN, files.c.job == bindparam("job_of")))


_IS_NOTE_FOR_TURN = and_(
    files.c.conversation == bindparam("of"),
    files.c.note.is_not(None),
    files.c.noted_turn.is_(None) | (files.c.noted_turn == bindparam("turn_of")),
)
_NOTES = (
    select(files.c.id, files.c.note)
    .where(_IS_NOTE_FOR_TURN)
    .order_by(files.c.created_at, files.c.id)
    .limit(50)
)
HAS_INCOMING: ColumnElement[bool] = literal_column(
    "(EXISTS (SELECT 1 FROM messages WHERE messages.turn = CAST(turns.id AS VARCHAR)"
    " AND messages.role = 'user' AND CAST(messages.attachments AS VARCHAR) <> '[]')"
    " OR EXISTS (SELECT 1 FROM files WHERE files.conversation = CAST(turns.conversation AS VARCHAR)"
    " AND files.note IS NOT NULL AND (files.noted_turn IS NULL OR files.noted_turn = turns.id)))"
)
"""Whether a row of `turns` has attachments, or its model is to get notes about files (as `list_notes`).

It is text, because SQLAlchemy leaves the names of tables out of what SQLite returns. SQLite uses the indexes
only with the casts: what an UPDATE returns has no type.
"""


def _row(row: Mapping[Any, Any]) -> FileRow:
    return FileRow(**{**row, "state": FileState(row["state"])})


async def _all(connection: Connection, query: Executable, given: Mapping[str, object] | None = None) -> Any:
    return [_row(row) for row in (await connection.execute(query, given or {})).mappings()]


@cache
def _insert(dialect: str) -> Any:
    return insert_on_conflict(files, dialect).on_conflict_do_nothing(
        index_elements=["conversation", "identity"]
    )


async def add(connection: Connection, row: FileRow) -> bool:
    """Insert a file; False when this conversation has one of the same identity already."""
    values = {name: getattr(row, name) for name in FileRow.__dataclass_fields__}
    values["state"] = str(row.state)
    added = await connection.execute(_insert(connection.dialect.name).values(values).returning(files.c.id))
    return added.first() is not None


async def replace(connection: Connection, row: FileRow) -> None:
    """Insert a file in place of one with the same identity in its conversation."""
    await connection.execute(
        delete(files).where(files.c.conversation == row.conversation, files.c.identity == row.identity)
    )
    await add(connection, row)


async def stored_bytes(connection: Connection, account: str, *, at_least: int) -> int:
    """Return the sizes of an account's stored files, added up; each counts `at_least` so many bytes."""
    size = case((files.c.size < at_least, at_least), else_=files.c.size)
    query = select(func.coalesce(func.sum(size), 0)).where(
        files.c.account == account, files.c.sha256.is_not(None)
    )
    return int((await connection.execute(query)).scalar_one())


async def set_version(connection: Connection, conversation: str, identity: str, *, version: str) -> None:
    """Remember that a file met before was written again with the same content."""
    await connection.execute(
        update(files)
        .where(files.c.conversation == conversation, files.c.identity == identity)
        .values(version=version)
    )


async def get_by_id(connection: Connection, file: str) -> FileRow | None:
    """Return a file of any account; the caller checks access."""
    found: list[FileRow] = await _all(connection, select(*_COLUMNS).where(files.c.id == file))
    return found[0] if found else None


async def get_by_identity(connection: Connection, conversation: str, identity: str) -> FileRow | None:
    """Return a conversation's file by its identity."""
    query = select(*_COLUMNS).where(files.c.conversation == conversation, files.c.identity == identity)
    found: list[FileRow] = await _all(connection, query)
    return found[0] if found else None


async def list_trees(connection: Connection, last: FileRow, *, limit: int) -> list[FileRow]:
    """Return the trees of a conversation's turns from `last` back; archives are left out."""
    query = (
        select(*_COLUMNS)
        .where(
            files.c.conversation == last.conversation,
            files.c.state == str(FileState.TREE),
            files.c.name == last.name,
            files.c.created_at <= last.created_at,
        )
        .order_by(files.c.created_at.desc(), files.c.id.desc())
        .limit(limit)
    )
    found: list[FileRow] = await _all(connection, query)
    return found


async def list_for_turn(
    connection: Connection, conversation: str, turn: str, job: str | None = None
) -> list[FileRow]:
    """Return the published files of a turn, and of the job whose end it answers, in order."""
    given = {"of": conversation, "turn_of": turn}
    rows: list[FileRow] = await (
        _all(connection, _EMITTED_BY_FOLLOW_UP, {**given, "job_of": job})
        if job
        else _all(connection, _EMITTED_BY_TURN, given)
    )
    return rows


async def list_for_jobs(connection: Connection, conversation: str, jobs: Sequence[str]) -> list[FileRow]:
    """Return the published files of jobs, in order."""
    rows: list[FileRow] = await _all(connection, _EMITTED.where(files.c.job.in_(jobs)), {"of": conversation})
    return rows


async def count(connection: Connection, conversation: str, *, turn: str, job: str | None) -> int:
    """Return how many files a turn or a job has produced already."""
    whose = files.c.job == job if job else (files.c.turn == turn) & files.c.job.is_(None)
    found = await connection.execute(
        select(func.count())
        .select_from(files)
        .where(
            files.c.conversation == conversation,
            whose,
            files.c.state.in_((str(FileState.STAGED), str(FileState.EMITTED))),
        )
    )
    return int(found.scalar_one())


async def known_versions(
    connection: Connection, conversation: str, paths: Sequence[str]
) -> dict[str, set[str]]:
    """Return the versions and digests of files at these paths that the conversation has met already."""
    rows = await connection.execute(
        select(files.c.path, files.c.version, files.c.sha256).where(
            files.c.conversation == conversation, files.c.path.in_(list(paths)), files.c.version != ""
        )
    )
    met: dict[str, set[str]] = {}
    for path, version, digest in rows:
        met.setdefault(path, set()).update({version, digest or ""})
    return met


async def list_activity_spans(
    connection: Connection, conversation: str, *, since: datetime
) -> list[ActivitySpan]:
    """Return the time spans of a conversation's tool calls and jobs that ended after a moment.

    A call that starts a job is left out: files written while it runs belong to the job.
    """
    called = (
        select(steps.c.started_at, steps.c.finished_at, steps.c.args)
        .join(turns, turns.c.id == steps.c.turn)
        .where(turns.c.conversation == conversation, steps.c.finished_at >= since)
    )
    worked = select(jobs.c.created_at, jobs.c.finished_at).where(
        jobs.c.conversation == conversation, jobs.c.finished_at >= since
    )
    calls = [row for row in await connection.execute(called) if not row.args.get("background")]
    return [
        ActivitySpan(started_at=row[0], ended_at=row[1])
        for row in (*calls, *await connection.execute(worked))
    ]


async def collect_staged(connection: Connection, conversation: str, job: str | None = None) -> list[FileRow]:
    """Return the unpublished files of a conversation's turns, or of one job, and mark them as published."""
    if job is None:
        found: list[FileRow] = await _all(connection, _STAGED_BY_TURNS, {"of": conversation})
    else:
        waiting = (str(FileState.STAGED), str(FileState.REFUSED))
        found = await _all(
            connection,
            select(*_COLUMNS)
            .where(files.c.job == job, files.c.state.in_(waiting))
            .order_by(files.c.created_at, files.c.id),
        )
    for before, after in ((FileState.STAGED, FileState.EMITTED), (FileState.REFUSED, FileState.DECLINED)):
        ids = [row.id for row in found if row.state is before]
        if ids:
            await connection.execute(update(files).where(files.c.id.in_(ids)).values(state=str(after)))
    return found


async def record_fetch_result(
    connection: Connection,
    file: str,
    *,
    state: FileState,
    path: str = "",
    content: tuple[str, int, str] | None = None,
    reason: str = "",
) -> None:
    """Record the result of fetching an attachment: type, size and digest, or the reason it is missing."""
    values: dict[str, object] = {"state": str(state), "path": path, "caption": reason}
    if content is not None:
        values |= dict(zip(("type", "size", "sha256"), content, strict=True))
    await connection.execute(update(files).where(files.c.id == file).values(**values))


async def attach_uploads(
    connection: Connection, account: str, ids: Sequence[str], *, conversation: str, turn: str
) -> None:
    """Attach uploads to the conversation and turn that they were sent with; equal ones stay separate."""
    await connection.execute(
        update(files)
        .where(files.c.id.in_(list(ids)), files.c.account == account, files.c.conversation.is_(None))
        .values(conversation=conversation, turn=turn, identity=files.c.id)
    )


async def add_note(connection: Connection, file: str, note: str) -> bool:
    """Store a note about a file for the model; returns False when there is one already."""
    noted = await connection.execute(
        update(files).where(files.c.id == file, files.c.note.is_(None)).values(note=note)
    )
    return noted.rowcount == 1


async def list_notes(connection: Connection, conversation: str, turn: str) -> dict[str, str]:
    """Return the notes for this turn's model by file; a repeated attempt gets the same notes."""
    rows = await connection.execute(_NOTES, {"of": conversation, "turn_of": turn})
    return {row[0]: row[1] for row in rows}


async def mark_noted(connection: Connection, ids: Iterable[str], turn: str) -> None:
    """Record which turn's model received the notes of files."""
    await connection.execute(update(files).where(files.c.id.in_(list(ids))).values(noted_turn=turn))


@cache
def _touch(dialect: str) -> Any:
    return insert_on_conflict(blobs, dialect)


async def touch(connection: Connection, digest: str, size: int) -> bool:
    """Announce that bytes will be stored; returns False while a deletion of this digest is in progress."""
    now = utc_now()
    statement = (
        _touch(connection.dialect.name)
        .values(sha256=digest, size=size, dropping=False, touched_at=now)
        .on_conflict_do_update(
            index_elements=["sha256"], set_={"touched_at": now}, where=blobs.c.dropping.is_(False)
        )
        .returning(blobs.c.sha256)
    )
    return (await connection.execute(statement)).first() is not None


async def delete_before(connection: Connection, *, before: datetime) -> int:
    """Drop files that are older than the retention."""
    return (await connection.execute(delete(files).where(files.c.created_at < before))).rowcount


async def begin_delete(
    connection: Connection, *, now: datetime, grace: timedelta, after: str = "", limit: int = 500
) -> tuple[list[str], str]:
    """Mark bytes that no file has among the next rows after a digest.

    Returns the digests that are to be dropped, and the last one that was looked at; empty at the end.
    """
    page = select(blobs.c.sha256).where(blobs.c.sha256 > after).order_by(blobs.c.sha256).limit(limit)
    seen = [row[0] for row in await connection.execute(page)]
    used = select(files.c.id).where(files.c.sha256 == blobs.c.sha256).exists()
    idle = select(blobs.c.sha256).where(
        blobs.c.sha256.in_(seen), blobs.c.dropping.is_(False), blobs.c.touched_at < now - grace, ~used
    )
    found = [row[0] for row in await connection.execute(idle)] if seen else []
    if found:
        await connection.execute(
            update(blobs)
            .where(blobs.c.sha256.in_(found), blobs.c.touched_at < now - grace, ~used)
            .values(dropping=True)
        )
    rows = await connection.execute(select(blobs.c.sha256).where(text("dropping")).limit(limit))
    return [row[0] for row in rows], seen[-1] if len(seen) == limit else ""


async def end_delete(connection: Connection, digest: str) -> None:
    """Delete the row of deleted bytes."""
    await connection.execute(delete(blobs).where(blobs.c.sha256 == digest, blobs.c.dropping.is_(True)))
