"""SQL of what clients' requests added to their turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select, update

from delivery.database.engine import Connection
from gateway.store.tables import turns


async def get_locked(connection: Connection, turn: str) -> Mapping[str, Any] | None:
    """Return what a request added to a turn, and let nobody else replace it before this transaction ends."""
    found = await connection.execute(select(turns.c.request).where(turns.c.id == turn).with_for_update())
    request: Mapping[str, Any] | None = found.scalar_one_or_none()
    return request


async def set_request(connection: Connection, turn: str, request: Mapping[str, Any]) -> None:
    """Replace what a request added to a turn."""
    await connection.execute(update(turns).where(turns.c.id == turn).values(request=dict(request)))


async def count_turns(connection: Connection, conversation: str) -> int:
    """Return how many turns a conversation has."""
    counted = await connection.execute(
        select(func.count()).select_from(turns).where(turns.c.conversation == conversation)
    )
    return int(counted.scalar_one())
