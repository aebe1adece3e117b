"""SQL of what came of a job: the turn its end has queued."""

from __future__ import annotations

from sqlalchemy import select

from delivery.database import Connection
from gateway.store.tables import turns


async def of_job(connection: Connection, job: str) -> str | None:
    """Return the id of the turn that a job's end has queued."""
    found = await connection.execute(select(turns.c.id).where(turns.c.job == job))
    return found.scalar_one_or_none()
