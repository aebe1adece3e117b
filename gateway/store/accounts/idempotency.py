"""SQL of stored responses to POSTs with an Idempotency-Key."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from delivery.database.batched_deletes import delete_batch
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from gateway.store.tables import replies


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRow:
    """A stored key and its response; `status` is None while the first request is in progress."""

    digest: str
    status: int | None
    body: bytes | None
    holder: str | None
    created_at: datetime


async def claim(
    database: Database, account: str, key: str, digest: str, *, holder: str | None = None
) -> bool:
    """Claim a key for this request, which `holder` executes; returns False when the key is in use."""
    values = {
        "account": account,
        "idempotency_key": key,
        "digest": digest,
        "holder": holder,
        "created_at": utc_now(),
    }
    try:
        async with database.begin() as connection:
            await connection.execute(insert(replies).values(values))
    except IntegrityError:
        return False
    return True


async def get(connection: Connection, account: str, key: str) -> IdempotencyRow | None:
    """Return the stored key and its response."""
    row = (
        await connection.execute(
            select(*(replies.c[field.name] for field in fields(IdempotencyRow))).where(
                replies.c.account == account, replies.c.idempotency_key == key
            )
        )
    ).one_or_none()
    if row is None:
        return None
    return IdempotencyRow(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name of it


async def reclaim(
    connection: Connection, account: str, key: str, *, since: datetime, holder: str | None = None
) -> bool:
    """Take over a key whose request died without a response; returns True for one caller only."""
    done = await connection.execute(
        update(replies)
        .where(
            replies.c.account == account,
            replies.c.idempotency_key == key,
            replies.c.status.is_(None),
            replies.c.created_at == since,
        )
        .values(created_at=utc_now(), holder=holder)
    )
    return done.rowcount == 1


async def save(connection: Connection, account: str, key: str, *, status: int, body: bytes) -> None:
    """Store the response."""
    await connection.execute(
        update(replies)
        .where(replies.c.account == account, replies.c.idempotency_key == key)
        .values(status=status, body=body)
    )


async def release(connection: Connection, account: str, key: str) -> None:
    """Delete a key whose request was refused, so that a corrected request can use it."""
    await connection.execute(
        delete(replies).where(
            replies.c.account == account, replies.c.idempotency_key == key, replies.c.status.is_(None)
        )
    )


async def delete_before(connection: Connection, *, before: datetime) -> int:
    """Drop some answers that are older than the window of repeats; return their number."""
    return await delete_batch(connection, replies, replies.c.created_at < before)
