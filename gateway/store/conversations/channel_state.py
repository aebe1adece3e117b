"""SQL of channels' notes: the small durable memory of their adapters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import delete, select

from channels.port import RECENT_PREFIX
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.channel_tables import channel_notes as table
from gateway.store.tables import account_of_record

MAX_ENTRIES = 10_000
EMPTY_RETENTION = timedelta(days=1)
"""Seconds that an entry without content is kept, because its existence may still matter."""


async def get(connection: Connection, channel: str, name: str) -> str | None:
    """Return a channel's stored value by name."""
    found = await connection.execute(
        select(table.c.note).where(table.c.channel == channel, table.c.name == name)
    )
    return found.scalar_one_or_none()


async def save(connection: Connection, channel: str, notes: Mapping[str, str]) -> None:
    """Store values under their names and delete old empty ones."""
    now = utc_now()
    if "" in notes.values():
        old = (table.c.note == "") & (table.c.updated_at < now - EMPTY_RETENTION)
        await connection.execute(delete(table).where(table.c.channel == channel, old))
    for name, note in notes.items():
        values = {"note": note, "updated_at": now}
        await connection.execute(
            insert_on_conflict(table, connection.dialect.name)
            .values(channel=channel, name=name, account=account_of_record(channel), **values)
            .on_conflict_do_update(index_elements=["channel", "name"], set_=values)
        )


async def list_by_prefix(connection: Connection, channel: str, prefix: str) -> dict[str, str]:
    """Return a channel's newest entries whose names start with a prefix."""
    found = await connection.execute(
        select(table.c.name, table.c.note)
        .where(table.c.channel == channel, table.c.name.startswith(prefix, autoescape=True))
        .order_by(table.c.updated_at.desc())
        .limit(MAX_ENTRIES)
    )
    return {row.name: row.note for row in found}


async def delete_recent_before(connection: Connection, *, before: datetime) -> None:
    """Delete temporary entries that were last written before a moment."""
    begins = table.c.name.startswith(RECENT_PREFIX, autoescape=True)
    await connection.execute(delete(table).where(begins, table.c.updated_at < before))


async def delete_for_channel(connection: Connection, channel: str) -> None:
    """Delete all entries of a channel."""
    await connection.execute(delete(table).where(table.c.channel == channel))
