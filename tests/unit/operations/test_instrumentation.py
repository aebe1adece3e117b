"""The numbers follow what passes the ports."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.message import Address, RoomMigrated, Update
from channels.port import Accept
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.broker.memory_events import MemoryEvents
from delivery.database.engine import Database
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.errors import LeaseBusy, LeaseLost
from delivery.events.event import Event, EventType
from gateway.ingress.channel_context import ChannelContext, UpdateAcceptor
from gateway.instrumentation import (
    InstrumentedLeases,
    InstrumentedSink,
    InstrumentedStream,
    InstrumentedUpdateHandler,
)
from gateway.observability.gauges import QueueGauges
from gateway.observability.metrics import Metrics
from gateway.store.accounts.records import Record
from migrated import migrated_sqlite

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def event(kind: EventType, number: int, *, after: float = 0.0) -> Event:
    """Return an event of turn trn_1, some seconds after the first."""
    moment = NOW + timedelta(seconds=after)
    return Event(
        id=f"evt_{number}", type=kind, time=moment, conversation="cnv_1", turn="trn_1", data={}, n=number
    )


async def test_what_is_appended_is_counted() -> None:
    """Events are counted by type, turns and jobs by how they ended, and a turn's time from its start."""
    metrics = Metrics()
    stream = InstrumentedStream(MemoryEvents(), metrics)
    story = (
        EventType.MESSAGE_RECEIVED,
        EventType.TURN_STARTED,
        EventType.JOB_FAILED,
        EventType.TURN_COMPLETED,
    )
    seq = 0
    for number, kind in enumerate(story, start=1):
        seq = await stream.append(event(kind, number, after=float(number)), expected=seq, account="acc")
    text = metrics.render().decode()
    assert "dovecote_messages_total 1.0" in text
    assert 'dovecote_turns_total{state="completed"} 1.0' in text
    assert 'dovecote_jobs_total{state="failed"} 1.0' in text
    assert 'dovecote_events_total{type="turn.started"} 1.0' in text
    assert "dovecote_turn_seconds_sum 2.0" in text


async def test_reading_goes_through() -> None:
    """The instrumented stream reads, subscribes and publishes transient events as the inner one does."""
    stream = InstrumentedStream(MemoryEvents(), Metrics())
    async with stream.subscribe("cnv_1", account="acc") as following:
        seq = await stream.append(event(EventType.TURN_STARTED, 1), expected=0, account="acc")
        await stream.publish_transient(event(EventType.MESSAGE_DELTA, 2), account="acc")
        recorded = await anext(following)
    assert recorded is not None
    assert recorded.seq == seq
    tail = await stream.tail("cnv_1", account="acc")
    assert tail is not None
    assert tail.seq == seq
    assert (await stream.bounds("cnv_1", account="acc")).first_seq == seq
    assert [one.seq for one in await stream.read("cnv_1", after=0, transient=False, account="acc")] == [seq]


class RetryingSink(Sink):
    """A sink that wants everything tried again."""

    async def send(self, delivery: Delivery) -> Outcome:
        """Put it off."""
        return Outcome(kind=OutcomeKind.RETRY, detail=delivery.id)


async def test_attempts_are_counted() -> None:
    """Each attempt is counted by route and outcome, and its outcome is passed on."""
    metrics = Metrics()
    delivery = Delivery(
        id="dlv_1", account="acc_1", event_id="evt_1", event_type="agent.finished", event_time=NOW,
        conversation=None, kind="webhook", target="whk_1", part=0, body=b"", attempt=1,
    )  # fmt: skip
    outcome = await InstrumentedSink(RetryingSink(), metrics).send(delivery)
    assert outcome.detail == "dlv_1"
    text = metrics.render().decode()
    assert 'dovecote_deliveries_total{outcome="retry",route="webhook"} 1.0' in text
    assert 'dovecote_delivery_seconds_count{route="webhook"} 1.0' in text


async def test_queues_are_measured(tmp_path: Path) -> None:
    """The gauges cover every queue, empty ones too, and the loop ends when it is stopped."""
    url = await migrated_sqlite(tmp_path / "d.db")
    metrics, database, stop = Metrics(), Database(url), asyncio.Event()
    depths = QueueGauges(database, metrics, interval=0.01)
    try:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(depths.run(stop))
            await depths.run_once()
            stop.set()
    finally:
        await database.close()
    text = metrics.render().decode()
    for queue in (
        "turns.queued",
        "deliveries.dead",
        "deliveries.parked",
        "deliveries.ambiguous",
        "events.unpublished",
        "jobs.running",
        "approvals.pending",
        "chats.dead",
    ):
        assert f'dovecote_queue_depth{{queue="{queue}"}} 0.0' in text


async def test_tools_jobs_and_dead_turns_are_timed_and_counted() -> None:
    """Tool calls and jobs are timed from event to event; a tool of another name is one of the others."""
    metrics = Metrics()
    stream = InstrumentedStream(MemoryEvents(), metrics)
    story: tuple[tuple[EventType, dict[str, object]], ...] = (
        (EventType.TURN_QUEUED, {}),
        (EventType.TURN_STARTED, {"attempt": 1}),
        (EventType.TOOL_CALLED, {"name": "bash", "call": "c1"}),
        (EventType.TOOL_COMPLETED, {"name": "bash", "call": "c1"}),
        (EventType.TOOL_CALLED, {"name": "made up by a model", "call": "c2"}),
        (EventType.JOB_STARTED, {"resultId": "job_1"}),
        (EventType.JOB_LOST, {"resultId": "job_1"}),
        (EventType.TURN_RESTARTED, {"attempt": 2}),
        (EventType.TURN_FAILED, {"error": "given up: this turn was interrupted 5 times before it finished"}),
        (EventType.DELIVERY_DEAD, {}),
    )
    seq = 0
    for number, (kind, reported) in enumerate(story, start=1):
        one = replace(event(kind, number, after=float(number)), data=reported)
        seq = await stream.append(one, expected=seq, account="acc")
    text = metrics.render().decode()
    assert "dovecote_turn_wait_seconds_sum 1.0" in text
    assert 'dovecote_tool_seconds_sum{tool="bash"} 1.0' in text
    assert 'dovecote_tool_calls_total{tool="other"} 1.0' in text
    assert "dovecote_job_seconds_sum 1.0" in text
    assert "dovecote_turn_restarts_total 1.0" in text
    for dead in ("turn", "job", "delivery"):
        assert f'dovecote_dead_total{{kind="{dead}"}} 1.0' in text


async def test_leases_are_counted_by_kind() -> None:
    """Leases are counted when they are acquired, refused and lost; the label has only the kind."""
    metrics, inner = Metrics(), MemoryLeases()
    leases = InstrumentedLeases(inner, metrics)
    async with leases.acquire("t:cnv_1") as lease:
        assert 'dovecote_leases{kind="conversation"} 1.0' in metrics.render().decode()
        with pytest.raises(LeaseBusy):
            async with leases.acquire("t:cnv_1"):
                pass
        assert lease.name == "t:cnv_1"
        inner.revoke("t:cnv_1")
    text = metrics.render().decode()
    assert 'dovecote_leases{kind="conversation"} 0.0' in text
    for change in ("acquired", "busy", "lost"):
        assert f'dovecote_lease_changes_total{{change="{change}",kind="conversation"}} 1.0' in text


async def test_leases_that_are_acquired_locally_are_counted_too() -> None:
    """Until their release they are held; a lease of which only the broker has the state is no change."""
    metrics, inner = Metrics(), MemoryLeases()
    leases = InstrumentedLeases(inner, metrics)
    lease = leases.acquire_locally("d:chat")
    assert lease is not None
    assert lease.name == "d:chat"
    assert leases.acquire_locally("d:chat") is None
    assert 'dovecote_leases{kind="destination"} 1.0' in metrics.render().decode()
    lost = asyncio.Event()
    lease.on_lost(lost.set)
    inner.revoke("d:chat")
    await lease.wait_lost()
    assert lost.is_set()
    with pytest.raises(LeaseLost):
        lease.ensure_held()
    lease.release()
    text = metrics.render().decode()
    assert 'dovecote_leases{kind="destination"} 0.0' in text
    for change in ("acquired", "lost"):
        assert f'dovecote_lease_changes_total{{change="{change}",kind="destination"}} 1.0' in text


async def test_what_cannot_be_taken_is_counted_and_raised() -> None:
    """An update that could not be stored is counted as failed, and the platform keeps it."""
    metrics = Metrics()
    now = datetime.now(UTC)
    record = Record(
        id="chn_1",
        account="acc_1",
        kind="channel",
        name="bot",
        config={"kind": "telegram"},
        created_at=now,
        updated_at=now,
    )
    moved = RoomMigrated(
        key="k1", old=Address(channel="chn_1", room="1"), new=Address(channel="chn_1", room="2")
    )
    for failing in (True, False):
        accept = InstrumentedUpdateHandler(FakeUpdateAcceptor(failing=failing), metrics).accept(
            ChannelContext(record=record, agent="a", allow=())
        )
        if failing:  # a zero before the first failure, or Prometheus sees no increase
            zero = 'dovecote_inbound_total{kind="moved",outcome="failed",platform="telegram"} 0.0'
            assert zero in metrics.render().decode()
        with pytest.raises(OSError, match="full") if failing else nullcontext():
            await accept(moved)
    text = metrics.render().decode()
    for outcome in ("failed", "accepted"):
        assert f'dovecote_inbound_total{{kind="moved",outcome="{outcome}",platform="telegram"}} 1.0' in text


class FakeUpdateAcceptor(UpdateAcceptor):
    """An update handler that accepts every update, or fails."""

    def __init__(self, *, failing: bool) -> None:
        self._failing = failing

    def accept(self, context: ChannelContext) -> Accept:
        """Return a function that accepts updates, or fails."""

        async def take(_update: Update) -> None:
            if self._failing:
                raise OSError("the disk is full")

        return take
