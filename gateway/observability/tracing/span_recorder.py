"""Follows what is published, and makes spans of what has ended.

Spans are made of rows and events when a turn, a job or an attempt has ended, by the process that published
its end: nothing is carried in memory from process to process, so a crash in the middle costs no span.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Protocol

import structlog

from delivery.database.engine import Connection, Database, Unavailable
from delivery.deliveries import queries
from delivery.events import outbox
from delivery.events.event import Event, Kind
from gateway.agents.port import Requested, Work
from gateway.observability.tracing import spans
from gateway.observability.tracing.spans import Request, Span
from gateway.store.turns import jobs, turns
from gateway.store.turns import lineage as lineage_store

log = structlog.get_logger(__name__)

JOB_ENDS = frozenset({Kind.JOB_COMPLETED, Kind.JOB_FAILED, Kind.JOB_STOPPED, Kind.JOB_LOST})
DELIVERY_ENDS = frozenset({Kind.DELIVERY_SUCCEEDED, Kind.DELIVERY_FAILED, Kind.DELIVERY_DEAD})
WAITING = 10_000
"""Ends that wait to be looked up; beyond that they go untraced."""


class Out(Protocol):
    """Where spans go."""

    def export(self, span: Span) -> None:
        """Hand on one span; returns at once."""

    def close(self) -> None:
        """Send what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """Hears of events as they are published (`hear`), and exports spans beside that (`run`)."""

    database: Database
    opened: Callable[[], Out]
    _heard: asyncio.Queue[Event | Request | None] = field(default_factory=lambda: asyncio.Queue(WAITING))

    def hear(self, event: Event) -> None:
        """Take note of an event that ends something."""
        if event.type in spans.ENDS | JOB_ENDS | DELIVERY_ENDS and not self._heard.full():
            self._heard.put_nowait(event)

    def hear_request(self, work: Work, number: int, request: Requested) -> None:
        """Take note of a request to a model."""
        if not self._heard.full():
            model = work.persona.models[0]
            told = Request(
                turn=work.turn, attempt=work.attempt, number=number, model=model, **asdict(request)
            )
            self._heard.put_nowait(told)

    async def run(self, stop: asyncio.Event) -> None:
        """Export until stopped, then what was heard before, within what the exporter allows."""
        out = await asyncio.to_thread(self.opened)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._end(stop))
            while (ended := await self._heard.get()) is not None:
                await self._trace(ended, out)
        await asyncio.to_thread(out.close)

    async def _end(self, stop: asyncio.Event) -> None:
        await stop.wait()
        await self._heard.put(None)

    async def _trace(self, ended: Event | Request, out: Out) -> None:
        try:
            async with self.database.read() as connection:
                found = await spans_of(connection, ended)
        except Unavailable as error:
            log.debug("trace.not_made", turn=ended.turn, error=str(error))
            return
        for span in found:
            out.export(span)


async def spans_of(connection: Connection, event: Event | Request) -> list[Span]:
    """Return the spans of what has ended; none for what is gone or belongs to no turn."""
    if event.turn is None:
        return []
    if isinstance(event, Request):
        asked = await lineage_store.of_turn(connection, event.turn)
        return [spans.of_request(asked, event)] if asked else []
    if event.type in JOB_ENDS:
        return await _job(connection, str(event.data.get("resultId", "")), event.time)
    if event.type in DELIVERY_ENDS:
        return await _delivery(connection, event)
    lineage = await lineage_store.of_turn(connection, event.turn)
    turn = await turns.find(connection, lineage.account, event.turn) if lineage else None
    if lineage is None or turn is None:
        return []
    told = await outbox.events_of_turn(connection, event.turn)
    return spans.of_turn(lineage, turn, told, await turns.steps_of(connection, event.turn), event.time)


async def _job(connection: Connection, wanted: str, now: datetime) -> list[Span]:
    job = await jobs.by_id(connection, wanted)
    lineage = await lineage_store.of_turn(connection, job.turn) if job else None
    return [spans.of_job(lineage, job, now)] if job and lineage else []


async def _delivery(connection: Connection, event: Event) -> list[Span]:
    """Return the attempt that ended, and those before it that a crash cut off, of which nothing was told."""
    lineage = await lineage_store.of_turn(connection, event.turn or "")
    if lineage is None:
        return []
    standing = await queries.find(connection, lineage.account, str(event.data.get("delivery", "")))
    if standing is None:
        return []
    tried = await queries.attempts_of(connection, standing.id)
    number = event.data.get("attempt")
    made = spans.of_delivery(lineage, standing, tried, event.time)
    return [
        span
        for one, span in zip(tried, made, strict=True)
        if one.number == number or (one.outcome is None and one.number < int(number or 0))
    ]
