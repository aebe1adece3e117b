"""SQL of how much is waiting, for the gauges."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select

from delivery.attempt import DeliveryState
from delivery.database import Connection
from delivery.tables import deliveries, destinations, streams
from gateway.job import JobState
from gateway.store import turns as turn_store
from gateway.store.tables import approvals, jobs

OWED = (DeliveryState.PENDING, DeliveryState.SENDING, DeliveryState.RETRYING, DeliveryState.DEAD)
"""States of deliveries that somebody may want to look at."""


async def waiting(connection: Connection) -> Mapping[str, int]:
    """Return lengths by queue: unfinished turns, owed deliveries, running jobs, events not yet told.

    `chats.dead` are the chats that take nothing from us any more.
    """
    turns = await turn_store.state_counts(connection)
    owed = dict.fromkeys((f"deliveries.{state}" for state in OWED), 0)
    rows = await connection.execute(
        select(deliveries.c.state, func.count())
        .where(deliveries.c.state.in_([str(state) for state in OWED]))
        .group_by(deliveries.c.state)
    )
    untold = select(func.coalesce(func.sum(streams.c.last_n - streams.c.relayed_n), 0))
    running = select(func.count()).select_from(jobs).where(jobs.c.state == str(JobState.RUNNING))
    asked = select(func.count()).select_from(approvals).where(approvals.c.state == "pending")
    dead = select(func.count()).select_from(destinations).where(destinations.c.dead_at.is_not(None))
    return {
        **{f"turns.{state}": turns.get(state, 0) for state in ("queued", "running", "waiting")},
        **owed,
        **{f"deliveries.{row[0]}": row[1] for row in rows},
        "events.untold": int((await connection.execute(untold)).scalar_one()),
        "jobs.running": int((await connection.execute(running)).scalar_one()),
        "chats.dead": int((await connection.execute(dead)).scalar_one()),
        "approvals.pending": int((await connection.execute(asked)).scalar_one()),
    }
