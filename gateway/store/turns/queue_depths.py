"""SQL of how much is waiting, for the gauges."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import func, select, text

from delivery.database.engine import Connection
from delivery.database.tables import IS_BEHIND, IS_FAILED, IS_OPEN, deliveries, destinations, streams
from delivery.deliveries.attempt import DeliveryState
from gateway.store.job_state import JobState
from gateway.store.tables import DEAD_TURN, IS_PENDING, approvals, jobs, turns
from gateway.store.tables import IS_OPEN as IS_OPEN_TURN
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns as turn_store

COUNTED_DELIVERY_STATES = (
    DeliveryState.PENDING,
    DeliveryState.SENDING,
    DeliveryState.RETRYING,
    DeliveryState.PARKED,
    DeliveryState.AMBIGUOUS,
    DeliveryState.DEAD,
)
"""States of deliveries that need attention."""


_COUNTED_DELIVERIES = tuple(
    select(deliveries.c.state, func.count()).where(which).group_by(deliveries.c.state)
    for which in (IS_OPEN, IS_FAILED)
)


_DEAD_TURNS = select(func.count()).select_from(turns).where(text(DEAD_TURN))

OLDEST_ROW_QUERIES = {
    "turns.queued": select(func.min(turns.c.created_at)).where(
        IS_OPEN_TURN, turns.c.state == str(TurnState.QUEUED)
    ),
    "jobs.running": select(func.min(jobs.c.created_at)).where(jobs.c.state == str(JobState.RUNNING)),
    "approvals.pending": select(func.min(approvals.c.created_at)).where(IS_PENDING),
    "deliveries.open": select(func.min(deliveries.c.created_at)).where(IS_OPEN),
}
"""Queries for the creation time of the oldest row of each queue."""


async def oldest_age(connection: Connection, now: datetime) -> Mapping[str, float]:
    """Return the age in seconds of the oldest row that waits, by queue; 0 for an empty one."""
    found = {
        queue: (await connection.execute(query)).scalar_one() for queue, query in OLDEST_ROW_QUERIES.items()
    }
    return {queue: (now - made).total_seconds() if made else 0.0 for queue, made in found.items()}


async def ping(connection: Connection) -> None:
    """Execute a minimal query; raises when the database does not answer."""
    await connection.execute(select(1))


async def depth(connection: Connection) -> Mapping[str, int]:
    """Return lengths by queue: unfinished turns, open deliveries, running jobs, unpublished events.

    `turns.dead` were dead-lettered and not retried; `chats.dead` are chats that refuse messages for good.
    """
    open_turns = await turn_store.count_by_state(connection)
    open_deliveries = dict.fromkeys((f"deliveries.{state}" for state in COUNTED_DELIVERY_STATES), 0)
    rows = [row for counted in _COUNTED_DELIVERIES for row in await connection.execute(counted)]
    unpublished = select(func.coalesce(func.sum(streams.c.last_n - streams.c.relayed_n), 0)).where(IS_BEHIND)
    running = select(func.count()).select_from(jobs).where(jobs.c.state == str(JobState.RUNNING))
    pending = select(func.count()).select_from(approvals).where(IS_PENDING)
    dead = select(func.count()).select_from(destinations).where(destinations.c.dead_at.is_not(None))
    return {
        **{f"turns.{state}": open_turns.get(state, 0) for state in ("queued", "running", "waiting")},
        **open_deliveries,
        **{f"deliveries.{row[0]}": row[1] for row in rows},
        "events.unpublished": int((await connection.execute(unpublished)).scalar_one()),
        "turns.dead": int((await connection.execute(_DEAD_TURNS)).scalar_one()),
        "jobs.running": int((await connection.execute(running)).scalar_one()),
        "chats.dead": int((await connection.execute(dead)).scalar_one()),
        "approvals.pending": int((await connection.execute(pending)).scalar_one()),
    }


async def database_time(connection: Connection) -> datetime:
    """Return the database's current time."""
    now = (await connection.execute(select(func.now()))).scalar_one()
    return now if now.tzinfo else now.replace(tzinfo=UTC)
