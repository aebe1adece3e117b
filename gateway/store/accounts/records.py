"""SQL of records: agents, workspaces, sandboxes and channels, each the account's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Row, bindparam, delete, func, insert, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from gateway.store.accounts import revisions
from gateway.store.tables import records

RecordKind = Literal["agent", "workspace", "sandbox", "channel", "skill", "credential"]

ID_PREFIXES: Mapping[RecordKind, str] = {
    "agent": "agt",
    "workspace": "wsp",
    "sandbox": "sbx",
    "channel": "chn",
    "skill": "skl",
    "credential": "crd",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A named piece of configuration. `sealed` maps JSON pointers below `config` to envelopes."""

    id: str
    account: str
    kind: RecordKind
    name: str
    config: Mapping[str, Any]
    encrypted_secrets: Mapping[str, str] = field(default_factory=dict)
    managed: bool = False
    created_at: datetime
    updated_at: datetime


_BY_ID = select(records).where(records.c.id == bindparam("of"))
_FIND = (
    select(records)
    .where(
        records.c.account == bindparam("whose"),
        records.c.kind == bindparam("sort"),
        (records.c.id == bindparam("named")) | (records.c.name == bindparam("named")),
    )
    .order_by(records.c.id != bindparam("named"))
    .limit(1)
)


def _record(row: Row[Any]) -> Record:
    return Record(
        id=row.id,
        account=row.account,
        kind=row.kind,
        name=row.name,
        config=row.config,
        encrypted_secrets=row.secrets,
        managed=row.managed,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


async def add(connection: Connection, record: Record) -> None:
    """Insert a record; raises IntegrityError when the name is in use within account and kind."""
    await revisions.renew(connection, record.account)
    await connection.execute(
        insert(records).values(
            id=record.id,
            account=record.account,
            kind=record.kind,
            name=record.name,
            config=dict(record.config),
            secrets=dict(record.encrypted_secrets),
            managed=record.managed,
            created_at=record.created_at,
            updated_at=record.updated_at,
        )
    )


async def update_record(connection: Connection, record: Record) -> Record:
    """Write a record's name, config and secrets over the row of its id; return it with its new time."""
    written = replace(record, updated_at=utc_now())
    await revisions.renew(connection, record.account)
    await connection.execute(
        update(records)
        .where(records.c.id == record.id, records.c.account == record.account)
        .values(
            name=record.name,
            config=dict(record.config),
            secrets=dict(record.encrypted_secrets),
            managed=record.managed,
            updated_at=written.updated_at,
        )
    )
    return written


async def get(
    connection: Connection, account: str, kind: RecordKind, id_or_name: str, *, locked: bool = False
) -> Record | None:
    """Return the account's record of this id, else of this name; never another account's.

    A `locked` one is changed by no other transaction until this one ends.
    """
    if locked:
        await revisions.lock(connection, account)
    rows = await connection.execute(_FIND, {"whose": account, "sort": kind, "named": id_or_name})
    row = rows.one_or_none()
    return _record(row) if row else None


async def get_by_id(connection: Connection, record_id: str) -> Record | None:
    """Return a record of whichever account: for the gateway's own work, never for a request's id."""
    row = (await connection.execute(_BY_ID, {"of": record_id})).one_or_none()
    return _record(row) if row else None


async def list_by_kind(
    connection: Connection, account: str, kind: RecordKind, *, after: str = "", limit: int = 1000
) -> Sequence[Record]:
    """Return the account's records of a kind, oldest first."""
    rows = await connection.execute(
        select(records)
        .where(records.c.account == account, records.c.kind == kind, records.c.id > after)
        .order_by(records.c.id)
        .limit(limit)
    )
    return [_record(row) for row in rows]


async def count(connection: Connection, account: str, kind: RecordKind) -> int:
    """Return how many records of a kind an account has."""
    of_kind = select(func.count()).where(records.c.account == account, records.c.kind == kind)
    return int((await connection.execute(of_kind)).scalar_one())


async def list_all(connection: Connection, kind: RecordKind) -> Sequence[Record]:
    """Return the records of a kind of all accounts (the channels to open at start)."""
    rows = await connection.execute(select(records).where(records.c.kind == kind).order_by(records.c.id))
    return [_record(row) for row in rows]


async def delete_record(connection: Connection, account: str, record_id: str) -> bool:
    """Delete a record; False when the account has none of this id."""
    await revisions.renew(connection, account)
    done = await connection.execute(
        delete(records).where(records.c.account == account, records.c.id == record_id)
    )
    return done.rowcount > 0


async def get_applied_settings(connection: Connection, record_id: str) -> Mapping[str, Any]:
    """Return the settings that were last applied to a record."""
    rows = await connection.execute(select(records.c.applied).where(records.c.id == record_id))
    return rows.scalar_one() or {}


async def set_applied_settings(connection: Connection, record: Record, settings: Mapping[str, Any]) -> None:
    """Store the settings that were last applied to a record."""
    await revisions.renew(connection, record.account)
    await connection.execute(update(records).where(records.c.id == record.id).values(applied=dict(settings)))
