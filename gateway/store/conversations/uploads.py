"""SQL of the files that clients uploaded."""

from __future__ import annotations

from sqlalchemy import delete, select

from delivery.database.engine import Connection
from gateway.store.conversations.files import FileRow, FileState
from gateway.store.tables import files

_COLUMNS = [files.c[name] for name in FileRow.__dataclass_fields__]


async def list_uploads(
    connection: Connection, account: str, *, after: str | None, limit: int, newest_first: bool
) -> list[FileRow]:
    """Return an account's uploads by their time, after the file `after` in this order."""
    query = select(*_COLUMNS).where(files.c.account == account, files.c.state == str(FileState.UPLOADED))
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
