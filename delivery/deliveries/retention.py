"""SQL that deletes old deliveries and the routes of deleted turns, in bounded steps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select

from delivery.database.engine import Connection
from delivery.database.tables import deliveries, outbox, routes, streams
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.store import OPEN

STEP_ROWS = 500
"""Rows that one step looks at, in the order of their age; a step is one short transaction."""

_DONE = (str(DeliveryState.DELIVERED), str(DeliveryState.SUPPRESSED))
_SEEN = [deliveries.c[name] for name in ("position", "id", "state", "created_at", "updated_at")]
_FAILED = (str(DeliveryState.DEAD), str(DeliveryState.AMBIGUOUS))


async def delete_deliveries(
    connection: Connection, *, after: int, done_before: datetime, failed_before: datetime | None
) -> int | None:
    """Delete old deliveries among the next rows after a position; return the last position or None.

    `failed_before` is for dead and ambiguous deliveries; None keeps them.
    """
    rows = await connection.execute(
        select(*_SEEN).where(deliveries.c.position > after).order_by(deliveries.c.position).limit(STEP_ROWS)
    )
    page = rows.all()
    seen = [row for row in page if row.created_at < done_before]
    old = [
        row.id
        for row in seen
        if (row.state in _DONE and row.updated_at < done_before)
        or (failed_before is not None and row.state in _FAILED and row.updated_at < failed_before)
    ]
    await connection.execute(delete(deliveries).where(deliveries.c.id.in_(old)))
    return page[-1].position if seen and len(page) == STEP_ROWS else None


async def list_undelivered(
    connection: Connection, turns: Sequence[str], conversations: Sequence[str]
) -> frozenset[str]:
    """Return which of some turns, of these conversations, have an open delivery or an unpublished event."""
    open_deliveries = select(deliveries.c.turn).where(
        deliveries.c.turn.in_(turns), deliveries.c.state.in_(OPEN)
    )
    events = (
        select(outbox.c.turn)
        .join(streams, streams.c.conversation == outbox.c.conversation)
        .where(streams.c.conversation.in_(conversations), outbox.c.n > streams.c.relayed_n)
        .where(outbox.c.turn.in_(turns))
    )
    found = await connection.execute(open_deliveries.union(events))
    return frozenset(found.scalars())


async def delete_turn_routes(connection: Connection, turns: Sequence[str]) -> None:
    """Delete the routes of turns; the routes of their conversations stay."""
    await connection.execute(delete(routes).where(routes.c.turn.in_(turns)))
