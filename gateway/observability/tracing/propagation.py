"""Propagate traces to webhooks with the header of W3C's Trace Context."""

from __future__ import annotations

from delivery.database.engine import Database, DatabaseUnavailable
from delivery.deliveries.port import Delivery
from delivery.events.event import Event
from gateway.observability.tracing.spans import attempt_span_id, trace_id
from gateway.store.turns import lineage as lineage_store


class TraceContextPropagator:
    """Returns the delivery attempt's span as the parent of the receiver's spans."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def headers(self, delivery: Delivery) -> dict[str, str]:
        """Return `traceparent`; None for a delivery without a turn, or when the database is unavailable."""
        turn = Event.decode(delivery.body).turn
        if turn is None:
            return {}
        try:
            async with self._database.read() as connection:
                lineage = await lineage_store.get_for_turn(connection, turn)
        except DatabaseUnavailable:
            return {}
        if lineage is None:
            return {}
        span = attempt_span_id(delivery.id, delivery.attempt)
        return {"traceparent": f"00-{trace_id(lineage).hex()}-{span.hex()}-01"}
