"""SQL of everything that is sealed, for a new key to take its place."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select, update

from delivery.database import Connection
from delivery.tables import endpoints
from gateway.store.tables import jobs, records, replies

Renewed = Callable[[str, str, str, str], str | None]
"""Given table, row, field and envelope, return the new envelope, or None when it is the newest already."""

BATCH = 200


async def renew_records(connection: Connection, after: str, renew: Renewed) -> tuple[str | None, int]:
    """Renew a batch of records after this id; returns where to go on, and how many were renewed."""
    rows = await connection.execute(
        select(records.c.id, records.c.secrets, records.c.updated_at)
        .where(records.c.id > after)
        .order_by(records.c.id)
        .limit(BATCH)
    )
    last, renewed = None, 0
    for row in rows.all():
        last = row.id
        fresh = {
            pointer: renew("records", row.id, pointer, envelope) for pointer, envelope in row.secrets.items()
        }
        if any(fresh.values()):
            whole = {pointer: fresh[pointer] or envelope for pointer, envelope in row.secrets.items()}
            unchanged = (records.c.id == row.id) & (records.c.updated_at == row.updated_at)
            renewed += (
                await connection.execute(update(records).where(unchanged).values(secrets=whole))
            ).rowcount
    return last, renewed


async def renew_endpoints(connection: Connection, after: str, renew: Renewed) -> tuple[str | None, int]:
    """Renew a batch of webhook secrets after this id."""
    rows = await connection.execute(
        select(endpoints.c.id, endpoints.c.secret, endpoints.c.previous_secret)
        .where(endpoints.c.id > after)
        .order_by(endpoints.c.id)
        .limit(BATCH)
    )
    last, renewed = None, 0
    for row in rows.all():
        last = row.id
        fields = {"secret": row.secret, "previous_secret": row.previous_secret}
        fresh = {
            name: renew("endpoints", row.id, name, envelope.decode())
            for name, envelope in fields.items()
            if envelope is not None
        }
        values = {name: envelope.encode() for name, envelope in fresh.items() if envelope is not None}
        if values:
            unchanged = (endpoints.c.id == row.id) & (endpoints.c.secret == row.secret)
            renewed += (await connection.execute(update(endpoints).where(unchanged).values(values))).rowcount
    return last, renewed


async def renew_jobs(connection: Connection, after: str, renew: Renewed) -> tuple[str | None, int]:
    """Renew a batch of job tokens after this id."""
    rows = await connection.execute(
        select(jobs.c.id, jobs.c.token_sealed).where(jobs.c.id > after).order_by(jobs.c.id).limit(BATCH)
    )
    last, renewed = None, 0
    for row in rows.all():
        last = row.id
        fresh = renew("jobs", row.id, "token", row.token_sealed.decode())
        if fresh is not None:
            await connection.execute(
                update(jobs).where(jobs.c.id == row.id).values(token_sealed=fresh.encode())
            )
            renewed += 1
    return last, renewed


async def renew_replies(connection: Connection, after: str, renew: Renewed) -> tuple[str | None, int]:
    """Renew a batch of kept answers after `<account> <key>`."""
    account, _, key = after.partition(" ")
    beyond = (replies.c.account > account) | (
        (replies.c.account == account) & (replies.c.idempotency_key > key)
    )
    rows = await connection.execute(
        select(replies.c.account, replies.c.idempotency_key, replies.c.body)
        .where(beyond if after else replies.c.account >= "")
        .order_by(replies.c.account, replies.c.idempotency_key)
        .limit(BATCH)
    )
    last, renewed = None, 0
    for row in rows.all():
        last = f"{row.account} {row.idempotency_key}"
        if not row.body:
            continue
        fresh = renew("replies", row.account or "operator", row.idempotency_key, row.body.decode())
        if fresh is not None:
            this = (replies.c.account == row.account) & (replies.c.idempotency_key == row.idempotency_key)
            await connection.execute(update(replies).where(this).values(body=fresh.encode()))
            renewed += 1
    return last, renewed


async def newest_endpoint(connection: Connection) -> tuple[str, str] | None:
    """Return id and sealed secret of the endpoint made last, or None."""
    found = await connection.execute(
        select(endpoints.c.id, endpoints.c.secret)
        .where(endpoints.c.secret.is_not(None))
        .order_by(endpoints.c.created_at.desc())
        .limit(1)
    )
    row = found.first()
    return (row.id, row.secret.decode()) if row else None
