"""The instrumented doors: each port is wrapped once, in the composition root, and adapters count nothing."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import structlog

from delivery.database import Database, Unavailable
from delivery.event import Event, Kind
from delivery.port import Delivery, Extent, Outcome, Recorded, Sink, Stream, Tail
from gateway.store import depths, sandboxes
from gateway.telemetry import Metrics

log = structlog.get_logger(__name__)

TURN_ENDS = {Kind.TURN_COMPLETED: "completed", Kind.TURN_FAILED: "failed", Kind.TURN_CANCELLED: "cancelled"}
JOB_ENDS = {
    Kind.JOB_COMPLETED: "completed",
    Kind.JOB_FAILED: "failed",
    Kind.JOB_STOPPED: "stopped",
    Kind.JOB_LOST: "lost",
}

REMEMBERED = 10_000
"""Turns whose start we remember to tell how long they took."""

LOOK_EVERY = 10.0
"""Seconds between looks at the lengths of queues."""


class CountedStream(Stream):
    """A stream whose appended events are counted; every change of state passes here as an event."""

    def __init__(self, inner: Stream, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics
        self._begun: OrderedDict[str, float] = OrderedDict()

    async def append(self, event: Event, *, expected: int) -> int:
        """Append and count."""
        seq = await self._inner.append(event, expected=expected)
        self._count(event)
        return seq

    async def whisper(self, event: Event) -> None:
        """Append a transient event, which is counted as such."""
        await self._inner.whisper(event)
        self._metrics.events.labels(type=str(event.type)).inc()

    async def tail(self, conversation: str) -> Tail | None:
        """Return the last lasting event kept, or None."""
        return await self._inner.tail(conversation)

    async def extent(self, conversation: str) -> Extent:
        """Return what is kept."""
        return await self._inner.extent(conversation)

    async def read(
        self, conversation: str, *, after: int, limit: int = 100, transient: bool = True
    ) -> Sequence[Recorded]:
        """Return kept events."""
        return await self._inner.read(conversation, after=after, limit=limit, transient=transient)

    async def forget(self, conversation: str) -> None:
        """Remove every event of a conversation."""
        await self._inner.forget(conversation)

    def follow(self, conversation: str) -> AbstractAsyncContextManager[AsyncIterator[Recorded | None]]:
        """Yield events as they are appended."""
        return self._inner.follow(conversation)

    def _count(self, event: Event) -> None:
        metrics = self._metrics
        metrics.events.labels(type=str(event.type)).inc()
        late = (datetime.now(UTC) - event.time).total_seconds()
        metrics.hop_seconds.labels(hop="told").observe(max(late, 0.0))
        if event.type is Kind.MESSAGE_RECEIVED:
            metrics.messages.inc()
        elif event.type in JOB_ENDS:
            metrics.jobs.labels(state=JOB_ENDS[event.type]).inc()
        else:
            self._count_turn(event)

    def _count_turn(self, event: Event) -> None:
        turn = event.turn or ""
        if event.type is Kind.TURN_STARTED:
            self._begun[turn] = event.time.timestamp()
            if len(self._begun) > REMEMBERED:
                self._begun.popitem(last=False)
        elif event.type in TURN_ENDS:
            self._metrics.turns.labels(state=TURN_ENDS[event.type]).inc()
            begun = self._begun.pop(turn, None)
            if begun is not None:
                self._metrics.turn_seconds.observe(max(event.time.timestamp() - begun, 0.0))


class CountedSink(Sink):
    """A sink whose attempts are counted and timed."""

    def __init__(self, inner: Sink, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once, count how it came out and how long it took."""
        begun = time.monotonic()
        outcome = await self._inner.send(delivery)
        self._metrics.deliveries.labels(route=delivery.kind, outcome=str(outcome.verdict)).inc()
        self._metrics.delivery_seconds.labels(route=delivery.kind).observe(time.monotonic() - begun)
        return outcome


class Depths:
    """Looks now and then at how much is waiting, for the gauges."""

    def __init__(self, database: Database, metrics: Metrics, *, every: float = LOOK_EVERY) -> None:
        self._database = database
        self._metrics = metrics
        self._every = every

    async def run(self, stop: asyncio.Event) -> None:
        """Look until stopped; a database that is away is looked at again later."""
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(stop.wait())
            while not ending.done():
                await self._try_to_look()
                await asyncio.wait({ending}, timeout=self._every)

    async def _try_to_look(self) -> None:
        try:
            await self.look()
        except Unavailable as error:
            log.debug("depths.unavailable", error=str(error))

    async def look(self) -> None:
        """Read the lengths of all queues once."""
        async with self._database.read() as connection:
            found = await depths.waiting(connection)
            states = await sandboxes.states(connection)
        for queue, length in found.items():
            self._metrics.depth.labels(queue=queue).set(length)
        for state, many in states.items():
            self._metrics.sandboxes.labels(state=state).set(many)
