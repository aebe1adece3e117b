"""The instrumented doors: each port is wrapped once, in the composition root, and adapters count nothing."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime

import structlog

from channels.message import Update
from channels.port import Accept
from delivery.broker.port import Lease, Leases
from delivery.database.clock import utc_now
from delivery.deliveries.port import Delivery, Outcome, Sink, Verdict
from delivery.errors import Busy, DeliveryError, LeaseLost
from delivery.events.event import Event, Kind
from delivery.events.port import Extent, Recorded, Stream, Tail
from gateway.ingress.channel_context import Desk
from gateway.ingress.receive import Accepting
from gateway.observability.metrics import Metrics
from gateway.store.turn_state import GIVEN_UP
from gateway.tools.executor import INSTALLED

log = structlog.get_logger(__name__)

TURN_ENDS = {Kind.TURN_COMPLETED: "completed", Kind.TURN_FAILED: "failed", Kind.TURN_CANCELLED: "cancelled"}
JOB_ENDS = {
    Kind.JOB_COMPLETED: "completed",
    Kind.JOB_FAILED: "failed",
    Kind.JOB_STOPPED: "stopped",
    Kind.JOB_LOST: "lost",
}
DEAD = {Kind.JOB_LOST: "job", Kind.DELIVERY_DEAD: "delivery", Kind.WEBHOOK_DISABLED: "webhook"}
LOGGED = {Kind.TURN_RESTARTED, Kind.JOB_STARTED, *TURN_ENDS, *JOB_ENDS, *DEAD}
"""Events that are lines of the log."""

LEASES = {"t": "conversation", "d": "destination", "a": "bot"}
"""What leases are for, by what stands before the colon of their names."""

REMEMBERED = 10_000
"""Beginnings that we remember to tell how long things took."""


class Beginnings:
    """When things began, the latest of them; what began elsewhere or too long ago has no duration."""

    def __init__(self) -> None:
        self._moments: OrderedDict[tuple[str, str], float] = OrderedDict()

    def note(self, what: str, key: str, moment: datetime) -> None:
        """Remember the first beginning."""
        self._moments.setdefault((what, key), moment.timestamp())
        if len(self._moments) > REMEMBERED:
            self._moments.popitem(last=False)

    def end(self, what: str, key: str, moment: datetime) -> float | None:
        """Return the seconds since the beginning, and forget it."""
        begun = self._moments.pop((what, key), None)
        return None if begun is None else moment.timestamp() - begun


class CountedStream(Stream):
    """A stream whose appended events are counted; every change of state passes here as an event."""

    def __init__(
        self, inner: Stream, metrics: Metrics, *, hear: Callable[[Event], None] = lambda _event: None
    ) -> None:
        self._inner = inner
        self._metrics = metrics
        self._hear = hear
        self._begun = Beginnings()

    async def append(self, event: Event, *, expected: int) -> int:
        """Append and count."""
        seq = await self._inner.append(event, expected=expected)
        self._count(event)
        _log(event)
        self._hear(event)
        return seq

    async def whisper(self, event: Event) -> None:
        """Append a transient event, which is counted as such."""
        await self._inner.whisper(event)
        self._metrics.count("events", type=str(event.type))

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
        metrics.count("events", type=str(event.type))
        metrics.observe("hop_seconds", (utc_now() - event.time).total_seconds(), hop="told")
        if event.type is Kind.MESSAGE_RECEIVED:
            metrics.count("messages")
        elif event.type in {Kind.TOOL_CALLED, Kind.TOOL_COMPLETED}:
            self._count_tool(event)
        elif event.type is Kind.JOB_STARTED or event.type in JOB_ENDS:
            self._count_job(event)
        else:
            self._count_turn(event)
        if event.type in DEAD:
            metrics.count("dead", kind=DEAD[event.type])

    def _count_tool(self, event: Event) -> None:
        tool = str(event.data.get("name", ""))
        tool, call = tool if tool in INSTALLED else "other", f"{event.turn} {event.data.get('call')}"
        if event.type is Kind.TOOL_CALLED:
            self._metrics.count("tool_calls", tool=tool)
            self._begun.note("tool", call, event.time)
            return
        self._took("tool_seconds", self._begun.end("tool", call, event.time), tool=tool)

    def _count_job(self, event: Event) -> None:
        job = str(event.data.get("resultId", ""))
        if event.type is Kind.JOB_STARTED:
            self._begun.note("job", job, event.time)
            return
        self._metrics.count("jobs", state=JOB_ENDS[event.type])
        self._took("job_seconds", self._begun.end("job", job, event.time))

    def _count_turn(self, event: Event) -> None:
        turn = event.turn or ""
        if event.type is Kind.TURN_QUEUED:
            self._begun.note("wait", turn, event.time)
        elif event.type is Kind.TURN_STARTED:
            self._took("turn_wait_seconds", self._begun.end("wait", turn, event.time))
            self._begun.note("turn", turn, event.time)
        elif event.type is Kind.TURN_RESTARTED:
            self._metrics.count("turn_restarts")
        elif event.type in TURN_ENDS:
            self._metrics.count("turns", state=TURN_ENDS[event.type])
            self._took("turn_seconds", self._begun.end("turn", turn, event.time))
            if str(event.data.get("error", "")).startswith(GIVEN_UP):
                self._metrics.count("dead", kind="turn")

    def _took(self, name: str, seconds: float | None, **labels: str) -> None:
        if seconds is not None:
            self._metrics.observe(name, seconds, **labels)


def _log(event: Event) -> None:
    """Say in the log what a story came to, with the ids by which the rest of it is found."""
    if event.type not in LOGGED:
        return
    ids = {"job": event.data.get("resultId"), "delivery": event.data.get("delivery"), "turn": event.turn}
    known = {name: value for name, value in ids.items() if value}
    log.info(str(event.type), conversation=event.conversation, event_id=event.id, **known)


class CountedSink(Sink):
    """A sink whose attempts are counted and timed."""

    def __init__(self, inner: Sink, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once, count how it came out and how long it took, alone and since what it tells of."""
        begun = time.monotonic()
        outcome = await self._inner.send(delivery)
        self._metrics.count("deliveries", route=delivery.kind, outcome=str(outcome.verdict))
        self._metrics.observe("delivery_seconds", time.monotonic() - begun, route=delivery.kind)
        if outcome.verdict is Verdict.DELIVERED:
            lag = (utc_now() - delivery.event_time).total_seconds()
            self._metrics.observe("delivery_lag_seconds", lag, route=delivery.kind)
        return outcome


class CountedLeases(Leases):
    """Leases that are counted by kind: how many are held, and how they were won or lost."""

    def __init__(self, inner: Leases, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics

    @asynccontextmanager
    async def hold(self, name: str, *, ttl: float = 6.0) -> AsyncIterator[Lease]:
        """Acquire, renew and release as the leases inside do."""
        kind, won = LEASES.get(name.partition(":")[0], "other"), False
        try:
            async with self._inner.hold(name, ttl=ttl) as lease:
                won = True
                self._metrics.count("lease_changes", kind=kind, change="acquired")
                with self._holding(kind, lease):
                    yield lease
        except DeliveryError as error:
            if not won:
                change = "busy" if isinstance(error, Busy) else "failed"
                self._metrics.count("lease_changes", kind=kind, change=change)
            raise

    async def is_held(self, name: str) -> bool:
        """Ask the leases inside."""
        return await self._inner.is_held(name)

    @contextmanager
    def _holding(self, kind: str, lease: Lease) -> Iterator[None]:
        held = self._metrics.gauges["leases"].labels(kind=kind)
        held.inc()
        try:
            yield
        finally:
            held.dec()
            try:
                lease.check()
            except LeaseLost:
                self._metrics.count("lease_changes", kind=kind, change="lost")


class CountedReception(Accepting):
    """A reception whose updates are counted; one that could not be taken is logged with its key."""

    def __init__(self, inner: Accepting, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics

    def accept(self, desk: Desk) -> Accept:
        """Return the channel's acceptance, counted."""
        take = self._inner.accept(desk)
        platform = str(desk.record.config.get("kind", ""))

        async def counted(update: Update) -> None:
            kind, outcome = type(update).__name__.lower(), "failed"
            try:
                await take(update)
                outcome = "taken"
            except Exception as error:
                log.warning("inbound.not_taken", channel=desk.record.name, key=update.key, error=str(error))
                raise
            finally:
                self._metrics.count("inbound", platform=platform, kind=kind, outcome=outcome)

        return counted
