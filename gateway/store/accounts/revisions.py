"""SQL of accounts' revisions: each change of an account's records and joined people gives it a new one.

What was read of an account is current for as long as its revision is the same. A revision is a random number
and no counter, so that the one of a transaction that was rolled back never comes again.
"""

from __future__ import annotations

from secrets import randbits

from sqlalchemy import bindparam, select, update

from delivery.database.engine import Connection
from gateway.store.tables import accounts

_LOCK = select(accounts.c.id).where(accounts.c.id == bindparam("whose")).with_for_update(key_share=True)

_GET = select(accounts.c.revision).where(accounts.c.id == bindparam("whose"))


async def lock(connection: Connection, account: str) -> None:
    """Let no other transaction change records and people of an account until this one ends.

    It comes before locks of their rows: transactions that lock in different orders wait for each other.
    """
    await connection.execute(_LOCK, {"whose": account})


async def get(connection: Connection, account: str) -> int | None:
    """Return an account's revision; None if there is no such account."""
    found = await connection.execute(_GET, {"whose": account})
    return found.scalar_one_or_none()


async def renew(connection: Connection, account: str) -> None:
    """Lock an account and give it a new revision, in the transaction of a change and before the change."""
    await connection.execute(update(accounts).where(accounts.c.id == account).values(revision=randbits(62)))
