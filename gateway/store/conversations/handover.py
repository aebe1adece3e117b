"""SQL of conversations that a person handles in the agent's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from gateway.store.tables import conversations, messages


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverMessage:
    """A message of a conversation that a person handled."""

    role: str
    author: str
    text: str
    created_at: datetime


async def start(connection: Connection, conversation: str, *, by: str) -> bool:
    """Give a conversation to a person; returns False if a person handles it already."""
    changed = await connection.execute(
        update(conversations)
        .where(conversations.c.id == conversation, conversations.c.handover_by.is_(None))
        .values(handover_by=by, handover_at=utc_now())
    )
    return changed.rowcount == 1


async def end(connection: Connection, conversation: str, *, carried: Mapping[str, Any] | None) -> bool:
    """Give a conversation back to its agent, whose next turn gets `carried`; False if the agent has it."""
    changed = await connection.execute(
        update(conversations)
        .where(conversations.c.id == conversation, conversations.c.handover_by.is_not(None))
        .values(handover_by=None, handover_at=None, carried_context=dict(carried) if carried else None)
    )
    return changed.rowcount == 1


async def clear_carried(connection: Connection, conversation: str) -> None:
    """Forget what a turn got of the time when a person handled the conversation."""
    await connection.execute(
        update(conversations).where(conversations.c.id == conversation).values(carried_context=None)
    )


async def set_carried(connection: Connection, conversation: str, carried: Mapping[str, Any]) -> None:
    """Set what the next turn of a conversation gets of what was said without its agent."""
    await connection.execute(
        update(conversations)
        .where(conversations.c.id == conversation)
        .values(carried_context=dict(carried) or None)
    )


async def list_messages(
    connection: Connection, conversation: str, *, since: datetime, limit: int
) -> Sequence[HandoverMessage]:
    """Return the newest messages of people and operators since a time, oldest first."""
    rows = await connection.execute(
        select(messages.c.role, messages.c.author, messages.c.text, messages.c.created_at)
        .where(
            messages.c.conversation == conversation,
            messages.c.created_at >= since,
            messages.c.role.in_(("user", "operator")),
        )
        .order_by(messages.c.position.desc())
        .limit(limit)
    )
    return [HandoverMessage(**row) for row in reversed(rows.mappings().all())]
