"""SQL of triggers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import delete, func, select

from delivery.database.engine import Connection
from gateway.store.schedule_tables import triggers as table


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """What a signed request starts, and where; `sealed` is the encrypted secret."""

    id: str
    account: str
    conversation: str
    template: str
    sealed: str
    created_by: str
    created_at: datetime


async def insert_trigger(connection: Connection, trigger: Trigger) -> None:
    """Insert a trigger."""
    await connection.execute(table.insert().values(**asdict(trigger)))


async def get_by_id(connection: Connection, trigger: str) -> Trigger | None:
    """Return a trigger whosever it is: its signature shows that the sender may use it."""
    row = (await connection.execute(select(table).where(table.c.id == trigger))).mappings().first()
    return Trigger(**row) if row else None


async def count(connection: Connection, account: str) -> int:
    """Return how many triggers an account has."""
    query = select(func.count()).select_from(table).where(table.c.account == account)
    return (await connection.execute(query)).scalar_one()


async def list_for_account(
    connection: Connection, account: str, *, after: str, limit: int
) -> Sequence[Trigger]:
    """Return triggers by id, which is the order of their creation, after the id `after`."""
    query = select(table).where(table.c.account == account, table.c.id > after)
    rows = await connection.execute(query.order_by(table.c.id).limit(limit))
    return [Trigger(**row) for row in rows.mappings()]


async def delete_trigger(connection: Connection, account: str, trigger: str) -> bool:
    """Delete a trigger; returns False if there is none."""
    done = await connection.execute(delete(table).where(table.c.account == account, table.c.id == trigger))
    return done.rowcount > 0
