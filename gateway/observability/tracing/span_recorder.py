"""Record spans of turns, jobs and deliveries when their end is published.

Spans are built from rows and events by the process that published the end. No state is passed between
processes, so that a crash loses no span.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog

from delivery.background import log_errors
from delivery.database.engine import Connection, Database, DatabaseUnavailable
from delivery.deliveries import queries
from delivery.events import outbox
from delivery.events.event import TURN_ENDS, Event, EventType
from gateway.agents.port import ModelRequestEnded, TurnInput
from gateway.observability.tracing import spans
from gateway.observability.tracing.spans import ModelRequestTiming, Span
from gateway.store.turns import jobs, turn_steps, turns
from gateway.store.turns import lineage as lineage_store

log = structlog.get_logger(__name__)

JOB_ENDS = frozenset(
    {EventType.JOB_COMPLETED, EventType.JOB_FAILED, EventType.JOB_STOPPED, EventType.JOB_LOST}
)
DELIVERY_ENDS = frozenset({EventType.DELIVERY_SUCCEEDED, EventType.DELIVERY_FAILED, EventType.DELIVERY_DEAD})
QUEUE_LIMIT = 10_000
"""Ends that wait to be recorded; further ones are not traced."""


class SpanExporter(Protocol):
    """Where spans go."""

    def export(self, span: Span) -> None:
        """Queue one span; returns at once."""

    def close(self) -> None:
        """Export the remaining spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecorder:
    """Receives events as they are published (`on_event`), and exports spans in the background (`run`)."""

    database: Database
    open_exporter: Callable[[], SpanExporter]
    _queue: asyncio.Queue[Event | ModelRequestTiming | None] = field(
        default_factory=lambda: asyncio.Queue(QUEUE_LIMIT)
    )

    def on_event(self, event: Event) -> None:
        """Queue an event that ends a turn, a job or a delivery attempt."""
        if event.type in TURN_ENDS | JOB_ENDS | DELIVERY_ENDS and not self._queue.full():
            self._queue.put_nowait(event)

    def on_model_request(self, turn_input: TurnInput, number: int, request: ModelRequestEnded) -> None:
        """Record the timing of a model request."""
        if not self._queue.full():
            model = turn_input.agent.models[0]
            timing = ModelRequestTiming(
                turn=turn_input.turn,
                attempt=turn_input.attempt,
                number=number,
                model=model,
                started_at=request.started_at,
                ended_at=request.ended_at,
                error=request.error,
            )
            self._queue.put_nowait(timing)

    async def run(self, stop: asyncio.Event) -> None:
        """Export until stopped, then export what is queued, within the exporter's time limit."""
        out = await asyncio.to_thread(self.open_exporter)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._close_on_stop(stop))
            while (ended := await self._queue.get()) is not None:
                with log_errors("traces.export", turn=ended.turn or ""):
                    await self._export(ended, out)
        with log_errors("traces.close"):
            await asyncio.to_thread(out.close)

    async def _close_on_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        await self._queue.put(None)

    async def _export(self, ended: Event | ModelRequestTiming, exporter: SpanExporter) -> None:
        try:
            async with self.database.read() as connection:
                found = await spans_for(connection, ended)
        except DatabaseUnavailable as error:
            log.debug("trace.skipped", turn=ended.turn, error=str(error))
            return
        for span in found:
            exporter.export(span)


async def spans_for(connection: Connection, event: Event | ModelRequestTiming) -> list[Span]:
    """Return the spans of what has ended; empty for what is deleted or belongs to no turn."""
    if event.turn is None:
        return []
    if isinstance(event, ModelRequestTiming):
        asked = await lineage_store.get_for_turn(connection, event.turn)
        return [spans.request_span(asked, event)] if asked else []
    if event.type in JOB_ENDS:
        return await _job_spans(connection, str(event.data.get("resultId", "")), event.time)
    if event.type in DELIVERY_ENDS:
        return await _delivery_spans(connection, event)
    lineage = await lineage_store.get_for_turn(connection, event.turn)
    turn = await turns.get(connection, lineage.account, event.turn) if lineage else None
    if lineage is None or turn is None:
        return []
    events = await outbox.list_for_turn(connection, event.turn)
    return spans.turn_spans(
        lineage, turn, events, await turn_steps.list_for_turn(connection, event.turn), event.time
    )


async def _job_spans(connection: Connection, job_id: str, now: datetime) -> list[Span]:
    job = await jobs.get_by_id(connection, job_id)
    lineage = await lineage_store.get_for_turn(connection, job.turn) if job else None
    return [spans.job_span(lineage, job, now)] if job and lineage else []


async def _delivery_spans(connection: Connection, event: Event) -> list[Span]:
    """Return the attempt that ended, and earlier ones that a crash interrupted without an event."""
    lineage = await lineage_store.get_for_turn(connection, event.turn or "")
    if lineage is None:
        return []
    delivery_view = await queries.get(connection, lineage.account, str(event.data.get("delivery", "")))
    if delivery_view is None:
        return []
    tried = await queries.list_attempts(connection, delivery_view.id)
    number = event.data.get("attempt")
    made = spans.delivery_spans(lineage, delivery_view, tried, event.time)
    return [
        span
        for one, span in zip(tried, made, strict=True)
        if one.number == number or (one.outcome is None and one.number < int(number or 0))
    ]
