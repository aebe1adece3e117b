"""SQL of what a client keeps with a conversation: its metadata, and items that it added itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select, update

from delivery.database.engine import Connection
from gateway.store.tables import conversations


async def get_state(connection: Connection, conversation: str) -> Mapping[str, Any]:
    """Return what a client keeps: `metadata` and `items`, if there are any."""
    found = await connection.execute(
        select(conversations.c.client_state).where(conversations.c.id == conversation)
    )
    return found.scalar_one_or_none() or {}


async def set_state(
    connection: Connection,
    conversation: str,
    state: Mapping[str, Any],
    *,
    carried: Mapping[str, Any] | None = None,
) -> None:
    """Replace what a client keeps; `carried` is what the conversation's next turn gets besides."""
    values: dict[str, Any] = {"client_state": dict(state)}
    if carried is not None:
        values["carried_context"] = dict(carried)
    await connection.execute(update(conversations).where(conversations.c.id == conversation).values(**values))
