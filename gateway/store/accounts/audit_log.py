"""SQL of the audit log and of erasures that the stream still has to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import delete, insert, select

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_or
from gateway.store.tables import audit, conversations, erasures


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One request that changed something, or was refused: `actor` is a key's id or `operator`."""

    id: str
    account: str | None
    actor: str
    action: str
    object: str
    status: int
    address: str
    created_at: datetime


_COLUMNS = [audit.c[name] for name in Deed.__dataclass_fields__]


async def record(connection: Connection, deed: Deed) -> None:
    """Write a deed down."""
    await connection.execute(insert(audit).values(asdict(deed)))


async def listed(
    connection: Connection, account: str | None, *, before: str | None, limit: int
) -> Sequence[Deed]:
    """Return deeds, newest first, older than the id `before`: an account's, or all for None."""
    query = select(*_COLUMNS)
    if account is not None:
        query = query.where(audit.c.account == account)
    if before:
        query = query.where(
            audit.c.position < select(audit.c.position).where(audit.c.id == before).scalar_subquery()
        )
    rows = await connection.execute(query.order_by(audit.c.position.desc()).limit(limit))
    return [Deed(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name of it


async def forget(connection: Connection, *, before: datetime) -> None:
    """Drop what is older."""
    await connection.execute(delete(audit).where(audit.c.created_at < before))


async def begin_erasure(connection: Connection, conversation: str) -> None:
    """Remember that a conversation's events are to be removed from the stream."""
    await connection.execute(
        insert_or(erasures, connection.dialect.name)
        .values(conversation=conversation, created_at=utc_now())
        .on_conflict_do_nothing(index_elements=["conversation"])
    )


async def begin_erasures_of(connection: Connection, account: str) -> None:
    """Remember the same of everything an account has said."""
    now = utc_now()
    found = await connection.execute(select(conversations.c.id).where(conversations.c.account == account))
    rows = [{"conversation": row.id, "created_at": now} for row in found]
    if rows:
        await connection.execute(insert(erasures), rows)


async def open_erasures(connection: Connection, *, limit: int = 100) -> Sequence[tuple[str, datetime]]:
    """Return (conversation, since) of what may still stand in the stream, oldest first."""
    rows = await connection.execute(
        select(erasures.c.conversation, erasures.c.created_at).order_by(erasures.c.created_at).limit(limit)
    )
    return [(row.conversation, row.created_at) for row in rows]


async def end_erasure(connection: Connection, conversation: str) -> None:
    """Note that nothing of a conversation is left."""
    await connection.execute(delete(erasures).where(erasures.c.conversation == conversation))
