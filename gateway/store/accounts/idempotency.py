"""SQL of what POSTs with an Idempotency-Key were answered."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from gateway.store.tables import replies


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRow:
    """What is known of a key: `status` None while its first request is at work."""

    digest: str
    status: int | None
    body: bytes | None
    holder: str | None
    created_at: datetime


async def claim(
    database: Database, account: str, key: str, digest: str, *, holder: str | None = None
) -> bool:
    """Take a key for this request, which `holder` carries out; False when it is taken."""
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
    """Return what is known of a key."""
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
    """Take a key whose request died unanswered; one of several who try wins."""
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
    """Keep the answer."""
    await connection.execute(
        update(replies)
        .where(replies.c.account == account, replies.c.idempotency_key == key)
        .values(status=status, body=body)
    )


async def release(connection: Connection, account: str, key: str) -> None:
    """Give a key back: its request was refused, and may be corrected and tried again."""
    await connection.execute(
        delete(replies).where(
            replies.c.account == account, replies.c.idempotency_key == key, replies.c.status.is_(None)
        )
    )


async def delete_before(connection: Connection, *, before: datetime) -> int:
    """Drop answers older than the window of repeats."""
    return (await connection.execute(delete(replies).where(replies.c.created_at < before))).rowcount
