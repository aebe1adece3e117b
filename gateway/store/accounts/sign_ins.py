"""SQL of the keys of people who signed in.

A sign-in first adds a key whose digest is that of a one-time code. Whoever brings the code takes the key
over: the digest becomes that of the key's text, in one statement, so that a code counts once on all replicas.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select, update

from delivery.database.batched_deletes import delete_batch
from delivery.database.engine import Connection
from gateway.store.key_tables import keys


async def take_over(
    connection: Connection, code: bytes, digest: bytes, *, now: datetime, expires: datetime
) -> str | None:
    """Give the key of an unused code another digest and end; return its id, or None for any other code."""
    waiting = (
        (keys.c.digest == code)
        & keys.c.subject.is_not(None)
        & keys.c.revoked_at.is_(None)
        & (keys.c.expires_at > now)
    )
    key = (await connection.execute(select(keys.c.id).where(waiting))).scalar_one_or_none()
    if key is None:
        return None
    taken = await connection.execute(update(keys).where(waiting).values(digest=digest, expires_at=expires))
    return str(key) if taken.rowcount else None


async def delete_expired(connection: Connection, *, before: datetime) -> int:
    """Delete some keys that expired before a moment; return their number."""
    return await delete_batch(connection, keys, keys.c.expires_at < before)
