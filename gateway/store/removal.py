"""SQL of the end of an account: nothing that names it stays."""

from __future__ import annotations

from sqlalchemy import delete, select

from delivery import endpoints
from delivery.database import Connection
from gateway.store.tables import accounts, inbox, pairings, records, replies


async def remove_account(connection: Connection, account: str) -> bool:
    """Delete an account, its records, conversations, turns, jobs and deliveries; False when there is none."""
    channels = select(records.c.id).where(records.c.account == account, records.c.kind == "channel")
    await connection.execute(delete(pairings).where(pairings.c.channel.in_(channels)))
    for table in (inbox, replies):
        await connection.execute(delete(table).where(table.c.account == account))
    await endpoints.forget_account(connection, account)
    done = await connection.execute(delete(accounts).where(accounts.c.id == account))
    return done.rowcount > 0
