"""SQL of all encrypted columns, for key rotation."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Table, select, update

from delivery.database.engine import Connection, insert_on_conflict
from delivery.database.tables import endpoints
from gateway.store.accounts import revisions
from gateway.store.channel_tables import channel_secrets
from gateway.store.key_tables import ended_sign_ins, mcp_sign_ins
from gateway.store.schedule_tables import triggers
from gateway.store.tables import jobs, marks, records, replies

Reencrypt = Callable[[str, str, str, str | bytes], str | None]
"""Given table, row, field and envelope, return the new envelope, or None when it is the newest already."""

BATCH_SIZE = 200


async def reencrypt_records(
    connection: Connection, after: str, reencrypt: Reencrypt
) -> tuple[str | None, int]:
    """Renew a batch of records after this id; returns where to go on, and how many were renewed."""
    rows = await connection.execute(
        select(records.c.id, records.c.account, records.c.secrets, records.c.updated_at)
        .where(records.c.id > after)
        .order_by(records.c.id)
        .limit(BATCH_SIZE)
    )
    last, renewed = None, 0
    for row in rows.all():
        last = row.id
        fresh = {
            pointer: reencrypt("records", row.id, pointer, envelope)
            for pointer, envelope in row.secrets.items()
        }
        if any(fresh.values()):
            whole = {pointer: fresh[pointer] or envelope for pointer, envelope in row.secrets.items()}
            unchanged = (records.c.id == row.id) & (records.c.updated_at == row.updated_at)
            await revisions.renew(connection, row.account)
            renewed += (
                await connection.execute(update(records).where(unchanged).values(secrets=whole))
            ).rowcount
    return last, renewed


async def reencrypt_endpoints(
    connection: Connection, after: str, reencrypt: Reencrypt
) -> tuple[str | None, int]:
    """Renew a batch of webhook secrets after this id."""
    rows = await connection.execute(
        select(endpoints.c.id, endpoints.c.secret, endpoints.c.previous_secret)
        .where(endpoints.c.id > after)
        .order_by(endpoints.c.id)
        .limit(BATCH_SIZE)
    )
    last, renewed = None, 0
    for row in rows.all():
        last = row.id
        fields = {"secret": row.secret, "previous_secret": row.previous_secret}
        fresh = {
            name: reencrypt("endpoints", row.id, name, envelope)
            for name, envelope in fields.items()
            if envelope is not None
        }
        values = {name: envelope.encode() for name, envelope in fresh.items() if envelope is not None}
        if values:
            unchanged = (endpoints.c.id == row.id) & (endpoints.c.secret == row.secret)
            renewed += (await connection.execute(update(endpoints).where(unchanged).values(values))).rowcount
    return last, renewed


async def reencrypt_channel_secrets(
    connection: Connection, after: str, reencrypt: Reencrypt
) -> tuple[str | None, int]:
    """Renew the secrets of a batch of channels after this id."""
    table = channel_secrets
    channels = (
        select(table.c.channel)
        .where(table.c.channel > after)
        .distinct()
        .order_by(table.c.channel)
        .limit(BATCH_SIZE)
    )
    rows = await connection.execute(select(table).where(table.c.channel.in_(channels.scalar_subquery())))
    last, renewed = None, 0
    for row in rows.all():
        last = max(last or "", row.channel)
        fresh = reencrypt("channel_secrets", row.channel, row.name, row.sealed)
        if fresh is not None:
            same = (table.c.channel == row.channel) & (table.c.name == row.name)
            unchanged = same & (table.c.sealed == row.sealed)
            renewed += (
                await connection.execute(update(table).where(unchanged).values(sealed=fresh))
            ).rowcount
    return last, renewed


async def reencrypt_mcp_sign_ins(
    connection: Connection, after: str, reencrypt: Reencrypt
) -> tuple[str | None, int]:
    """Renew the sign-ins at the MCP servers of a batch of agents after this id."""
    return await _reencrypt_sign_ins(connection, after, reencrypt, mcp_sign_ins)


async def reencrypt_ended_sign_ins(
    connection: Connection, after: str, reencrypt: Reencrypt
) -> tuple[str | None, int]:
    """Renew the sign-ins of a batch of agents that left the settings file."""
    return await _reencrypt_sign_ins(connection, after, reencrypt, ended_sign_ins)


async def _reencrypt_sign_ins(
    connection: Connection, after: str, reencrypt: Reencrypt, table: Table
) -> tuple[str | None, int]:
    agents = (
        select(table.c.agent)
        .where(table.c.agent > after)
        .distinct()
        .order_by(table.c.agent)
        .limit(BATCH_SIZE)
    )
    rows = await connection.execute(select(table).where(table.c.agent.in_(agents.scalar_subquery())))
    last, renewed = None, 0
    for row in rows.all():
        last = max(last or "", row.agent)
        fresh = reencrypt("mcp_sign_ins", row.agent, f"{row.server}:{row.person}", row.sealed)
        if fresh is not None:
            same = (table.c.agent == row.agent) & (table.c.server == row.server)
            unchanged = same & (table.c.person == row.person) & (table.c.sealed == row.sealed)
            done = await connection.execute(update(table).where(unchanged).values(sealed=fresh))
            renewed += done.rowcount
    return last, renewed


async def reencrypt_triggers(
    connection: Connection, after: str, reencrypt: Reencrypt
) -> tuple[str | None, int]:
    """Renew the secrets of a batch of triggers after this id."""
    rows = await connection.execute(
        select(triggers.c.id, triggers.c.sealed)
        .where(triggers.c.id > after)
        .order_by(triggers.c.id)
        .limit(BATCH_SIZE)
    )
    last, renewed = None, 0
    for row in rows.all():
        last, fresh = row.id, reencrypt("triggers", row.id, "secret", row.sealed)
        if fresh is not None:
            unchanged = (triggers.c.id == row.id) & (triggers.c.sealed == row.sealed)
            done = await connection.execute(update(triggers).where(unchanged).values(sealed=fresh))
            renewed += done.rowcount
    return last, renewed


async def reencrypt_jobs(connection: Connection, after: str, reencrypt: Reencrypt) -> tuple[str | None, int]:
    """Renew a batch of job tokens after this id."""
    rows = await connection.execute(
        select(jobs.c.id, jobs.c.token_sealed).where(jobs.c.id > after).order_by(jobs.c.id).limit(BATCH_SIZE)
    )
    last, renewed = None, 0
    for row in rows.all():
        last = row.id
        fresh = reencrypt("jobs", row.id, "token", row.token_sealed)
        if fresh is not None:
            await connection.execute(
                update(jobs).where(jobs.c.id == row.id).values(token_sealed=fresh.encode())
            )
            renewed += 1
    return last, renewed


async def reencrypt_idempotency(
    connection: Connection, after: str, reencrypt: Reencrypt
) -> tuple[str | None, int]:
    """Re-encrypt a batch of stored responses after `<account> <key>`."""
    account, _, key = after.partition(" ")
    beyond = (replies.c.account > account) | (
        (replies.c.account == account) & (replies.c.idempotency_key > key)
    )
    rows = await connection.execute(
        select(replies.c.account, replies.c.idempotency_key, replies.c.body)
        .where(beyond if after else replies.c.account >= "")
        .order_by(replies.c.account, replies.c.idempotency_key)
        .limit(BATCH_SIZE)
    )
    last, renewed = None, 0
    for row in rows.all():
        last = f"{row.account} {row.idempotency_key}"
        if not row.body:
            continue
        fresh = reencrypt("replies", row.account or "operator", row.idempotency_key, row.body)
        if fresh is not None:
            this = (replies.c.account == row.account) & (replies.c.idempotency_key == row.idempotency_key)
            await connection.execute(update(replies).where(this).values(body=fresh.encode()))
            renewed += 1
    return last, renewed


async def add_key_check(connection: Connection, name: str, envelope: str) -> None:
    """Store a key check value unless there is one of this name."""
    insert = insert_on_conflict(marks, connection.dialect.name)
    await connection.execute(insert.values(name=name, sealed=envelope).on_conflict_do_nothing())


async def list_key_checks(connection: Connection, name: str) -> dict[str, str]:
    """Return the key check values whose names begin with this one, in the order of names."""
    found = await connection.execute(select(marks).where(marks.c.name >= name).order_by(marks.c.name))
    return {row.name: row.sealed for row in found.all() if row.name.startswith(name)}


async def replace_key_check(connection: Connection, name: str, envelope: str) -> None:
    """Give a stored key check another value."""
    await connection.execute(update(marks).where(marks.c.name == name).values(sealed=envelope))


async def keep_key_checks(connection: Connection, names: tuple[str, ...]) -> None:
    """Delete all key check values but these."""
    await connection.execute(marks.delete().where(marks.c.name.not_in(names)))
