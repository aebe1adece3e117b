"""SQL of the audit log and of erasures that the stream still has to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import delete, insert, select

from delivery.database.batched_deletes import delete_batch
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.tables import audit, conversations, erasures


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One request that changed something or was refused: `actor` is a key's id or `operator`."""

    id: str
    account: str | None
    actor: str
    action: str
    object: str
    status: int
    address: str
    created_at: datetime


_COLUMNS = [audit.c[name] for name in AuditRow.__dataclass_fields__]


async def record(connection: Connection, *entries: AuditRow) -> None:
    """Write entries in their order; those that are written already are left out."""
    added = insert_on_conflict(audit, connection.dialect.name).on_conflict_do_nothing(index_elements=["id"])
    await connection.execute(added, [asdict(entry) for entry in entries])


async def list_entries(
    connection: Connection, account: str | None, *, before: str | None, limit: int
) -> Sequence[AuditRow]:
    """Return entries, newest first, older than the id `before`: an account's, or all for None."""
    query = select(*_COLUMNS)
    if account is not None:
        query = query.where(audit.c.account == account)
    if before:
        query = query.where(
            audit.c.position < select(audit.c.position).where(audit.c.id == before).scalar_subquery()
        )
    rows = await connection.execute(query.order_by(audit.c.position.desc()).limit(limit))
    return [AuditRow(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name of it


async def delete_before(connection: Connection, *, before: datetime) -> int:
    """Delete some entries that are older than a moment; return their number."""
    return await delete_batch(connection, audit, audit.c.created_at < before)


async def schedule_purge(connection: Connection, account: str, conversation: str) -> None:
    """Remember that a conversation's events are to be removed from the stream."""
    await connection.execute(
        insert_on_conflict(erasures, connection.dialect.name)
        .values(conversation=conversation, account=account, created_at=utc_now())
        .on_conflict_do_nothing(index_elements=["conversation"])
    )


async def schedule_account_purge(connection: Connection, account: str) -> None:
    """Mark every conversation of an account for deletion of its events."""
    now = utc_now()
    found = await connection.execute(select(conversations.c.id).where(conversations.c.account == account))
    rows = [{"conversation": row.id, "account": account, "created_at": now} for row in found]
    if rows:
        await connection.execute(insert(erasures), rows)


async def list_pending_purges(
    connection: Connection, *, limit: int = 100
) -> Sequence[tuple[str, str, datetime]]:
    """Return (account, conversation, since) of deletions whose events may still be stored, oldest first."""
    rows = await connection.execute(
        select(erasures.c.account, erasures.c.conversation, erasures.c.created_at)
        .order_by(erasures.c.created_at)
        .limit(limit)
    )
    return [(row.account, row.conversation, row.created_at) for row in rows]


async def complete_purge(connection: Connection, conversation: str) -> None:
    """Record that all events of a conversation are purged."""
    await connection.execute(delete(erasures).where(erasures.c.conversation == conversation))
