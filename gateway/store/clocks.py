"""SQL of the database's own clock."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import func, select

from delivery.database import Connection


async def now(connection: Connection) -> datetime:
    """Return what time it is where the database runs."""
    told = (await connection.execute(select(func.now()))).scalar_one()
    return told if told.tzinfo else told.replace(tzinfo=UTC)
