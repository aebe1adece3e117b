"""SQL of bundles: the files of skills and agents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.accounts import revisions
from gateway.store.tables import account_of_record, records
from gateway.store.tables import bundle_files as table


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFileRow:
    """A file of a bundle, without its content."""

    path: str
    sha256: str
    size: int
    updated_at: datetime


_FILE_COLUMNS = [table.c[name] for name in AgentFileRow.__dataclass_fields__]


async def write(connection: Connection, record: str, path: str, content: bytes) -> None:
    """Write a file, in place of one of its path; the record counts as changed."""
    await _touch(connection, record)
    values: dict[str, Any] = {
        "content": content,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "updated_at": utc_now(),
    }
    await connection.execute(
        insert_on_conflict(table, connection.dialect.name)
        .values(record=record, path=path, account=account_of_record(record), **values)
        .on_conflict_do_update(index_elements=["record", "path"], set_=values)
    )


async def _touch(connection: Connection, record: str) -> None:
    """Let a record count as changed, before its files are changed."""
    account = (await connection.execute(select(account_of_record(record)))).scalar_one_or_none()
    if account is not None:
        await revisions.renew(connection, account)
        await connection.execute(update(records).where(records.c.id == record).values(updated_at=utc_now()))


async def delete_file(connection: Connection, record: str, path: str) -> bool:
    """Remove a file, or all below a directory; False when there was none. The record counts as changed."""
    await _touch(connection, record)
    below = table.c.path.startswith(f"{path}/", autoescape=True)
    done = await connection.execute(
        delete(table).where(table.c.record == record, (table.c.path == path) | below)
    )
    return done.rowcount > 0


async def list_files(connection: Connection, record: str) -> Sequence[AgentFileRow]:
    """Return the files of a bundle, by path."""
    rows = await connection.execute(
        select(*_FILE_COLUMNS).where(table.c.record == record).order_by(table.c.path)
    )
    return [AgentFileRow(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name of it


async def read(connection: Connection, record: str, path: str) -> bytes | None:
    """Return a file's bytes."""
    found = await connection.execute(
        select(table.c.content).where(table.c.record == record, table.c.path == path)
    )
    return found.scalar_one_or_none()


async def read_all(connection: Connection, record: str) -> Mapping[str, bytes]:
    """Return all files of a bundle; bundles are bounded when they are written."""
    rows = await connection.execute(
        select(table.c.path, table.c.content).where(table.c.record == record).order_by(table.c.path)
    )
    return {row.path: row.content for row in rows}


async def count_and_size(connection: Connection, record: str, *, excluding: str) -> tuple[int, int]:
    """Return how many files a bundle has besides one, and their bytes."""
    found = await connection.execute(
        select(func.count(), func.coalesce(func.sum(table.c.size), 0)).where(
            table.c.record == record, table.c.path != excluding
        )
    )
    row = found.one()
    return int(row[0]), int(row[1])
