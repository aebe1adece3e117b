"""SQL of channels' secrets: the encrypted memory of their adapters."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select

from channels.port import RECENT_PREFIX
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.channel_tables import channel_secrets as table
from gateway.store.tables import account_of_record

RECENT_RETENTION = timedelta(hours=1)
"""How long a secret is kept whose name begins with RECENT_PREFIX."""

MAX_RECENT = 1000
"""Temporary secrets of a channel; the oldest are deleted first, because anybody may cause new ones."""


async def get(connection: Connection, channel: str, name: str) -> str | None:
    """Return the envelope of a channel's secret, or None."""
    found = await connection.execute(
        select(table.c.sealed).where(table.c.channel == channel, table.c.name == name)
    )
    return found.scalar_one_or_none()


async def list_by_prefix(
    connection: Connection, channel: str, prefix: str, *, after: str, limit: int
) -> dict[str, str]:
    """Return the envelopes of the secrets whose names begin with `prefix` and follow `after`."""
    found = await connection.execute(
        select(table.c.name, table.c.sealed)
        .where(
            table.c.channel == channel,
            table.c.name.startswith(prefix, autoescape=True),
            table.c.name > after,
        )
        .order_by(table.c.name)
        .limit(limit)
    )
    return {row.name: row.sealed for row in found}


async def save(connection: Connection, channel: str, name: str, sealed: str) -> None:
    """Store the envelope of a secret, and delete the channel's old temporary ones."""
    now = utc_now()
    if name.startswith(RECENT_PREFIX):
        recent = (table.c.channel == channel) & table.c.name.startswith(RECENT_PREFIX, autoescape=True)
        newest = select(table.c.updated_at).where(recent).order_by(table.c.updated_at.desc())
        surplus = (await connection.execute(newest.offset(MAX_RECENT - 1).limit(1))).scalar_one_or_none()
        oldest = max(now - RECENT_RETENTION, surplus or now - RECENT_RETENTION)
        await connection.execute(delete(table).where(recent, table.c.updated_at <= oldest))
    values = {"sealed": sealed, "updated_at": now}
    await connection.execute(
        insert_on_conflict(table, connection.dialect.name)
        .values(channel=channel, name=name, account=account_of_record(channel), **values)
        .on_conflict_do_update(index_elements=["channel", "name"], set_=values)
    )


async def remove(connection: Connection, channel: str, name: str) -> str | None:
    """Delete a secret and return its envelope, or None if there was none."""
    removed = await connection.execute(
        delete(table).where(table.c.channel == channel, table.c.name == name).returning(table.c.sealed)
    )
    sealed: str | None = removed.scalar_one_or_none()
    return sealed


async def delete_for_channel(connection: Connection, channel: str) -> None:
    """Delete all secrets of a channel."""
    await connection.execute(delete(table).where(table.c.channel == channel))
