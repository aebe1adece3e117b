"""SQL of the files that clients uploaded, and of uploads to workspaces that arrive in parts."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import delete, func, or_, select

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.conversations.files import FileRow, FileState
from gateway.store.tables import files

_COLUMNS = [files.c[name] for name in FileRow.__dataclass_fields__]
_IN_PARTS = (str(FileState.UPLOADING), str(FileState.PART))


async def delete_expired(connection: Connection, *, before: datetime) -> None:
    """Delete uploads whose client gave a time that has passed; their bytes are deleted by a later sweep."""
    await connection.execute(delete(files).where(files.c.expires_at <= before))


async def list_uploads(
    connection: Connection,
    account: str,
    *,
    after: str | None,
    limit: int,
    newest_first: bool,
    purpose: str | None = None,
) -> list[FileRow]:
    """Return an account's uploads by their time, after the file `after` in this order.

    With a `purpose`, those alone whose client gave it.
    """
    is_stored = or_(files.c.expires_at.is_(None), files.c.expires_at > utc_now())
    query = select(*_COLUMNS).where(
        files.c.account == account, files.c.state == str(FileState.UPLOADED), is_stored
    )
    if purpose is not None:
        query = query.where(files.c.purpose == purpose)
    if after is not None:
        query = query.where(files.c.id < after if newest_first else files.c.id > after)
    query = query.order_by(files.c.id.desc() if newest_first else files.c.id).limit(limit)
    rows = (await connection.execute(query)).mappings()
    return [FileRow(**{**row, "state": FileState(row["state"])}) for row in rows]


async def delete_upload(connection: Connection, account: str, file: str) -> bool:
    """Delete an uploaded file; returns False if there is none of this id."""
    gone = await connection.execute(
        delete(files).where(
            files.c.id == file, files.c.account == account, files.c.state == str(FileState.UPLOADED)
        )
    )
    return gone.rowcount == 1


@cache
def _insert(dialect: str) -> Any:
    return insert_on_conflict(files, dialect).on_conflict_do_nothing(index_elements=["id"])


async def add(connection: Connection, row: FileRow) -> bool:
    """Insert an upload or a part; returns False if there is a row of this id."""
    values = {name: getattr(row, name) for name in FileRow.__dataclass_fields__} | {"state": str(row.state)}
    added = await connection.execute(_insert(connection.dialect.name).values(values).returning(files.c.id))
    return added.first() is not None


async def get_open(connection: Connection, account: str, upload: str) -> FileRow | None:
    """Return an account's upload that is not complete."""
    query = select(*_COLUMNS).where(
        files.c.id == upload, files.c.account == account, files.c.state == str(FileState.UPLOADING)
    )
    row = (await connection.execute(query)).mappings().first()
    return FileRow(**{**row, "state": FileState(row["state"])}) if row else None


async def list_parts(connection: Connection, upload: str) -> list[FileRow]:
    """Return the parts of an upload in their order."""
    query = select(*_COLUMNS).where(files.c.turn == upload, files.c.state == str(FileState.PART))
    rows = (await connection.execute(query.order_by(files.c.id))).mappings()
    return [FileRow(**{**row, "state": FileState(row["state"])}) for row in rows]


async def count_open(connection: Connection, account: str) -> int:
    """Return how many uploads of an account are not complete."""
    query = select(func.count()).where(files.c.account == account, files.c.state == str(FileState.UPLOADING))
    return int((await connection.execute(query)).scalar_one())


async def delete_open(connection: Connection, upload: str) -> None:
    """Delete an upload with its parts; their bytes are deleted by a later sweep."""
    await connection.execute(
        delete(files).where(or_(files.c.id == upload, files.c.turn == upload), files.c.state.in_(_IN_PARTS))
    )


async def delete_open_before(connection: Connection, before: datetime) -> None:
    """Delete uploads that were begun before a time, and parts that arrived before it."""
    await connection.execute(delete(files).where(files.c.created_at < before, files.c.state.in_(_IN_PARTS)))
