"""Instrumentation: wrappers that add metrics and log lines to ports, used once in the composition root."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from datetime import datetime
from pathlib import Path

import structlog

from channels.message import (
    ButtonPress,
    Command,
    Message,
    MessageDeleted,
    PermissionsChanged,
    Reaction,
    RoomMigrated,
    RoomReopened,
    RoomsRenamed,
    Update,
)
from channels.port import Accept
from delivery.broker.port import Lease, Leases, LocalLease
from delivery.database.clock import utc_now
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.errors import DeliveryError, LeaseBusy, LeaseLost
from delivery.events.event import Event, EventType
from delivery.events.port import EventStream, StoredEvent, StreamBounds, Tail
from gateway.infra.backing_services import BackingServices
from gateway.infra.data_dir import separate_disks
from gateway.ingress.channel_context import ChannelContext, UpdateAcceptor, channel_identity
from gateway.observability.gauges import DiskGauges, ProcessGauges
from gateway.observability.metrics import Metrics
from gateway.store.turn_state import DEAD_LETTER_PREFIX
from gateway.tools.executor import TOOLS

log = structlog.get_logger(__name__)

TURN_END_STATES = {
    EventType.TURN_COMPLETED: "completed",
    EventType.TURN_FAILED: "failed",
    EventType.TURN_CANCELLED: "cancelled",
}
JOB_END_STATES = {
    EventType.JOB_COMPLETED: "completed",
    EventType.JOB_FAILED: "failed",
    EventType.JOB_STOPPED: "stopped",
    EventType.JOB_LOST: "lost",
}
DEAD_KINDS = {
    EventType.JOB_LOST: "job",
    EventType.DELIVERY_DEAD: "delivery",
    EventType.WEBHOOK_DISABLED: "webhook",
}
LOGGED_KINDS = {
    EventType.TURN_RESTARTED,
    EventType.JOB_STARTED,
    *TURN_END_STATES,
    *JOB_END_STATES,
    *DEAD_KINDS,
}
"""Events that are logged."""

LEASE_KINDS = {
    "t": "conversation",
    "d": "destination",
    "a": "bot",
    "r": "receiver",
    "ts": "turn_shard",
    "ds": "delivery_shard",
    "tw": "turn_worker",
    "dw": "delivery_worker",
}
"""Kinds of leases by the prefix of their names."""

MAX_START_TIMES = 10_000
"""Start times that are held in memory to measure durations."""


UPDATE_KINDS: dict[type[Update], str] = {
    Message: "message",
    Command: "command",
    ButtonPress: "press",
    Reaction: "reaction",
    RoomMigrated: "moved",
    RoomsRenamed: "moved",
    RoomReopened: "reopened",
    PermissionsChanged: "permissions",
    MessageDeleted: "deleted",
}
"""Values of the metric label `kind`."""


class StartTimes:
    """Start times of this process, the latest MAX_START_TIMES; anything else has no duration."""

    def __init__(self) -> None:
        self._started_at: OrderedDict[tuple[str, str], float] = OrderedDict()

    def start(self, kind: str, key: str, moment: datetime) -> None:
        """Record a start time, unless there is one."""
        self._started_at.setdefault((kind, key), moment.timestamp())
        if len(self._started_at) > MAX_START_TIMES:
            self._started_at.popitem(last=False)

    def elapsed(self, kind: str, key: str, moment: datetime) -> float | None:
        """Return the seconds since the start and remove it; None if it is unknown."""
        started = self._started_at.pop((kind, key), None)
        return None if started is None else moment.timestamp() - started


class InstrumentedStream(EventStream):
    """A stream that counts and logs appended events; every change of state is such an event."""

    def __init__(
        self, inner: EventStream, metrics: Metrics, *, on_event: Callable[[Event], None] = lambda _event: None
    ) -> None:
        self._inner = inner
        self._metrics = metrics
        self._on_event = on_event
        self._start_times = StartTimes()

    @property
    def epoch(self) -> str:
        """The incarnation of the stream."""
        return self._inner.epoch

    async def append(self, event: Event, *, account: str, expected: int) -> int:
        """Append and count."""
        seq = await self._inner.append(event, account=account, expected=expected)
        self._count(event)
        _log_event(event, account)
        self._on_event(event)
        return seq

    async def publish_transient(self, event: Event, *, account: str) -> None:
        """Publish and count a transient event."""
        await self._inner.publish_transient(event, account=account)
        self._metrics.count("events", type=str(event.type))

    async def tail(self, conversation: str, *, account: str) -> Tail | None:
        """Return the last stored event, or None."""
        return await self._inner.tail(conversation, account=account)

    async def bounds(self, conversation: str, *, account: str) -> StreamBounds:
        """Return the bounds of the stored events."""
        return await self._inner.bounds(conversation, account=account)

    async def read(
        self, conversation: str, *, account: str, after: int, limit: int = 100, transient: bool = True
    ) -> Sequence[StoredEvent]:
        """Return stored events."""
        return await self._inner.read(
            conversation, account=account, after=after, limit=limit, transient=transient
        )

    async def purge(self, conversation: str, *, account: str) -> None:
        """Delete every event of a conversation."""
        await self._inner.purge(conversation, account=account)

    def subscribe(
        self, conversation: str, *, account: str
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredEvent | None]]:
        """Yield events as they are appended."""
        return self._inner.subscribe(conversation, account=account)

    def _count(self, event: Event) -> None:
        metrics = self._metrics
        metrics.count("events", type=str(event.type))
        metrics.observe("hop_seconds", (utc_now() - event.time).total_seconds(), hop="published")
        if event.type is EventType.MESSAGE_RECEIVED:
            metrics.count("messages")
        elif event.type in {EventType.TOOL_CALLED, EventType.TOOL_COMPLETED}:
            self._count_tool(event)
        elif event.type is EventType.JOB_STARTED or event.type in JOB_END_STATES:
            self._count_job(event)
        else:
            self._count_turn(event)
        if event.type in DEAD_KINDS:
            metrics.count("dead", kind=DEAD_KINDS[event.type])

    def _count_tool(self, event: Event) -> None:
        tool = str(event.data.get("name", ""))
        tool, call = tool if tool in TOOLS else "other", f"{event.turn} {event.data.get('call')}"
        if event.type is EventType.TOOL_CALLED:
            self._metrics.count("tool_calls", tool=tool)
            self._start_times.start("tool", call, event.time)
            return
        self._observe("tool_seconds", self._start_times.elapsed("tool", call, event.time), tool=tool)

    def _count_job(self, event: Event) -> None:
        job = str(event.data.get("resultId", ""))
        if event.type is EventType.JOB_STARTED:
            self._start_times.start("job", job, event.time)
            return
        self._metrics.count("jobs", state=JOB_END_STATES[event.type])
        self._observe("job_seconds", self._start_times.elapsed("job", job, event.time))

    def _count_turn(self, event: Event) -> None:
        turn = event.turn or ""
        if event.type is EventType.TURN_QUEUED:
            self._start_times.start("wait", turn, event.time)
        elif event.type is EventType.TURN_STARTED:
            self._observe("turn_wait_seconds", self._start_times.elapsed("wait", turn, event.time))
            self._start_times.start("turn", turn, event.time)
        elif event.type is EventType.TURN_RESTARTED:
            self._metrics.count("turn_restarts")
        elif event.type in TURN_END_STATES:
            self._metrics.count("turns", state=TURN_END_STATES[event.type])
            self._observe("turn_seconds", self._start_times.elapsed("turn", turn, event.time))
            if str(event.data.get("error", "")).startswith(DEAD_LETTER_PREFIX):
                self._metrics.count("dead", kind="turn")

    def _observe(self, name: str, seconds: float | None, **labels: str) -> None:
        if seconds is not None:
            self._metrics.observe(name, seconds, **labels)


def _log_event(event: Event, account: str) -> None:
    """Log an event with the ids that identify its turn, job or delivery."""
    if event.type not in LOGGED_KINDS:
        return
    ids = {"job": event.data.get("resultId"), "delivery": event.data.get("delivery"), "turn": event.turn}
    known = {name: value for name, value in ids.items() if value}
    fields = {"account": account, "conversation": event.conversation, "event_id": event.id, **known}
    log.info(str(event.type), **fields)


class InstrumentedSink(Sink):
    """A sink that counts and times its attempts."""

    def __init__(self, inner: Sink, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics

    async def send(self, delivery: Delivery) -> Outcome:
        """Send once; count the outcome, and time the attempt and the lag since the event."""
        started = time.monotonic()
        outcome = await self._inner.send(delivery)
        self._metrics.count("deliveries", route=delivery.kind, outcome=str(outcome.kind))
        self._metrics.observe("delivery_seconds", time.monotonic() - started, route=delivery.kind)
        if outcome.kind is OutcomeKind.DELIVERED:
            lag = (utc_now() - delivery.event_time).total_seconds()
            self._metrics.observe("delivery_lag_seconds", lag, route=delivery.kind)
        return outcome


class InstrumentedLeases(Leases):
    """Leases that count by kind how many are held, acquired, busy, failed and lost."""

    def __init__(self, inner: Leases, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics

    @asynccontextmanager
    async def acquire(
        self, name: str, *, ttl: float = 6.0, session: Lease | None = None
    ) -> AsyncIterator[Lease]:
        """Acquire, renew and release a lease of the wrapped leases."""
        kind, acquired = LEASE_KINDS.get(name.partition(":")[0], "other"), False
        try:
            async with self._inner.acquire(name, ttl=ttl, session=session) as lease:
                acquired = True
                self._metrics.count("lease_changes", kind=kind, change="acquired")
                with self._count_held(kind, lease):
                    yield lease
        except DeliveryError as error:
            if not acquired:
                change = "busy" if isinstance(error, LeaseBusy) else "failed"
                self._metrics.count("lease_changes", kind=kind, change=change)
            raise

    def acquire_locally(self, name: str) -> LocalLease | None:
        """Acquire a lease of the wrapped leases without the broker."""
        lease = self._inner.acquire_locally(name)
        if lease is None:
            return None
        kind = LEASE_KINDS.get(name.partition(":")[0], "other")
        self._metrics.count("lease_changes", kind=kind, change="acquired")
        return _CountedLease(lease, self._count_held(kind, lease))

    def watch(self, name: str) -> AbstractContextManager[asyncio.Event]:
        """Watch a lease of the wrapped leases."""
        return self._inner.watch(name)

    async def is_held(self, name: str) -> bool:
        """Return whether the wrapped leases report it held."""
        return await self._inner.is_held(name)

    async def list_held(self, kind: str, *, after: Lease | None = None) -> frozenset[str]:
        """Return what the wrapped leases report as held."""
        return await self._inner.list_held(kind, after=after)

    @contextmanager
    def _count_held(self, kind: str, lease: Lease) -> Iterator[None]:
        held = self._metrics.gauges["leases"].labels(kind=kind)
        held.inc()
        try:
            yield
        finally:
            held.dec()
            try:
                lease.ensure_held()
            except LeaseLost:
                self._metrics.count("lease_changes", kind=kind, change="lost")


class _CountedLease(LocalLease):
    """A lease that is counted as held, in a block, until its release."""

    def __init__(self, inner: LocalLease, counted: AbstractContextManager[None]) -> None:
        self.name = inner.name
        self._inner = inner
        self._counting = ExitStack()
        self._counting.enter_context(counted)

    def ensure_held(self) -> None:
        """Raise LeaseLost unless the lease is certainly still held."""
        self._inner.ensure_held()

    async def wait_lost(self) -> None:
        """Return when the lease is lost."""
        await self._inner.wait_lost()

    def on_lost(self, report: Callable[[], None]) -> Callable[[], None]:
        """Call `report` when the lease is lost."""
        return self._inner.on_lost(report)

    def release(self) -> None:
        """Release the lease, and count it no longer."""
        self._counting.close()
        self._inner.release()


class InstrumentedUpdateHandler(UpdateAcceptor):
    """An update handler that counts updates, and logs a failed one with its key."""

    def __init__(self, inner: UpdateAcceptor, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics

    def accept(self, context: ChannelContext) -> Accept:
        """Return the wrapped handler's function, counted; failures are shown as 0 before the first one."""
        take = self._inner.accept(context)
        platform = str(context.record.config.get("kind", ""))
        for name in UPDATE_KINDS.values():
            self._metrics.count("inbound", 0, platform=platform, kind=name, outcome="failed")

        async def counted(update: Update) -> None:
            kind, outcome = UPDATE_KINDS[type(update)], "failed"
            try:
                await take(update)
                outcome = "accepted"
            except Exception as error:
                log.warning(
                    "ingress.update_failed",
                    **channel_identity(context.record),
                    key=update.key,
                    error=str(error),
                )
                raise
            finally:
                self._metrics.count("inbound", platform=platform, kind=kind, outcome=outcome)

        return counted


def process_gauges(
    backing: BackingServices, count_channels: Callable[[], Mapping[str, int]]
) -> ProcessGauges:
    """Return the gauges of this process."""
    return ProcessGauges(
        metrics=backing.metrics,
        database=backing.database,
        is_broker_up=lambda: backing.nats.state == "ok",
        event_log=lambda: backing.stream.usage,
        count_channels=count_channels,
    )


def disk_gauges(backing: BackingServices) -> DiskGauges:
    """Return the gauges of the disks that this process writes to."""
    directory = backing.settings.data_dir

    def list_directories() -> Mapping[str, Path]:
        return {"data": directory, **{one.name: one for one in separate_disks(directory)}}

    return DiskGauges(backing.metrics, list_directories)
