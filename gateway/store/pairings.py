"""SQL of pairings: strangers who may talk to a bot because an operator said so."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from delivery.database import Connection
from gateway.store.tables import pairings

CODE_LIFE = timedelta(hours=1)
_LETTERS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"


async def is_paired(connection: Connection, channel: str, person: str) -> bool:
    """Say whether an operator has let this person in."""
    found = await connection.execute(
        select(pairings.c.paired_at).where(pairings.c.channel == channel, pairings.c.person == person)
    )
    return found.scalar_one_or_none() is not None


async def offer_code(connection: Connection, channel: str, person: str, *, name: str) -> tuple[str, bool]:
    """Return the stranger's code and whether it is a new one: a code lives an hour."""
    now = datetime.now(UTC)
    found = await connection.execute(
        select(pairings.c.code, pairings.c.expires_at).where(
            pairings.c.channel == channel, pairings.c.person == person
        )
    )
    row = found.first()
    if row is not None and row.code and row.expires_at and row.expires_at > now:
        return row.code, False
    code = "".join(secrets.choice(_LETTERS) for _ in range(8))
    values = {"code": code, "name": name[:200], "expires_at": now + CODE_LIFE, "created_at": now}
    dialect = sqlite_insert if connection.dialect.name == "sqlite" else postgres_insert
    await connection.execute(
        dialect(pairings)
        .values(channel=channel, person=person, **values)
        .on_conflict_do_update(index_elements=["channel", "person"], set_=values)
    )
    return code, True


async def pair(connection: Connection, channel: str, code: str) -> str | None:
    """Let in whoever holds this code; returns the person, None for a wrong or expired code."""
    now = datetime.now(UTC)
    paired = await connection.execute(
        update(pairings)
        .where(
            pairings.c.channel == channel,
            pairings.c.code == code.strip().upper(),
            pairings.c.expires_at > now,
        )
        .values(paired_at=now, code=None)
        .returning(pairings.c.person)
    )
    person: str | None = paired.scalar_one_or_none()
    return person
