"""SQL of the branches of conversations that were left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.events.event import new_id
from gateway.store.history_tables import branches

MAX_LISTED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Turns that the agent no longer knows of, oldest first; `rerun` runs in their place, if a turn does."""

    id: str
    turn: str
    turns: Sequence[str]
    rerun: str | None
    by: str
    created_at: datetime


_COLUMNS = [branches.c[name] for name in Branch.__dataclass_fields__]


async def add(
    connection: Connection,
    *,
    account: str,
    conversation: str,
    turns: Sequence[str],
    rerun: str | None,
    by: str,
) -> None:
    """Record that a conversation left a branch with these turns."""
    row = {
        "id": new_id("brn"),
        "account": account,
        "conversation": conversation,
        "turn": turns[0],
        "turns": list(turns),
        "rerun": rerun,
        "by": by,
        "created_at": utc_now(),
    }
    await connection.execute(insert(branches).values(row))


async def list_for_conversation(connection: Connection, conversation: str) -> list[Branch]:
    """Return the newest branches that a conversation left, oldest first."""
    rows = await connection.execute(
        select(*_COLUMNS)
        .where(branches.c.conversation == conversation)
        .order_by(branches.c.created_at.desc(), branches.c.id.desc())
        .limit(MAX_LISTED)
    )
    return [Branch(**row) for row in reversed(rows.mappings().all())]
