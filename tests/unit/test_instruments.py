"""The numbers follow what passes the ports."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from delivery.database import Database
from delivery.event import Event, Kind
from delivery.port import Delivery, Outcome, Sink, Verdict
from delivery.streams.memory import MemoryStream
from gateway.instruments import CountedSink, CountedStream, Depths
from gateway.migrations import migrate_up
from gateway.telemetry import Metrics

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def event(kind: Kind, number: int, *, after: float = 0.0) -> Event:
    """Return an event of turn trn_1, some seconds after the first."""
    moment = NOW + timedelta(seconds=after)
    return Event(
        id=f"evt_{number}", type=kind, time=moment, conversation="cnv_1", turn="trn_1", data={}, n=number
    )


async def test_what_is_appended_is_counted() -> None:
    """Events are counted by type, turns and jobs by how they ended, and a turn's time from its start."""
    metrics = Metrics()
    stream = CountedStream(MemoryStream(), metrics)
    story = (Kind.MESSAGE_RECEIVED, Kind.TURN_STARTED, Kind.JOB_FAILED, Kind.TURN_COMPLETED)
    seq = 0
    for number, kind in enumerate(story, start=1):
        seq = await stream.append(event(kind, number, after=float(number)), expected=seq)
    text = metrics.render().decode()
    assert "dovecote_messages_total 1.0" in text
    assert 'dovecote_turns_total{state="completed"} 1.0' in text
    assert 'dovecote_jobs_total{state="failed"} 1.0' in text
    assert 'dovecote_events_total{type="turn.started"} 1.0' in text
    assert "dovecote_turn_seconds_sum 2.0" in text


async def test_reading_goes_through() -> None:
    """The counted stream reads, follows and whispers as the one inside does."""
    stream = CountedStream(MemoryStream(), Metrics())
    async with stream.follow("cnv_1") as following:
        seq = await stream.append(event(Kind.TURN_STARTED, 1), expected=0)
        await stream.whisper(event(Kind.MESSAGE_DELTA, 2))
        recorded = await anext(following)
    assert recorded is not None
    assert recorded.seq == seq
    tail = await stream.tail("cnv_1")
    assert tail is not None
    assert tail.seq == seq
    assert (await stream.extent("cnv_1")).first_seq == seq
    assert [one.seq for one in await stream.read("cnv_1", after=0, transient=False)] == [seq]


class Unwilling(Sink):
    """A sink that wants everything tried again."""

    async def send(self, delivery: Delivery) -> Outcome:
        """Put it off."""
        return Outcome(verdict=Verdict.RETRY, detail=delivery.id)


async def test_attempts_are_counted() -> None:
    """Each attempt is counted by route and outcome, and its outcome is passed on."""
    metrics = Metrics()
    delivery = Delivery(
        id="dlv_1", account="acc_1", event_id="evt_1", event_type="agent.finished", event_time=NOW,
        conversation=None, kind="webhook", target="whk_1", part=0, body=b"", attempt=1,
    )  # fmt: skip
    outcome = await CountedSink(Unwilling(), metrics).send(delivery)
    assert outcome.detail == "dlv_1"
    text = metrics.render().decode()
    assert 'dovecote_deliveries_total{outcome="retry",route="webhook"} 1.0' in text
    assert 'dovecote_delivery_seconds_count{route="webhook"} 1.0' in text


async def test_queues_are_measured(tmp_path: Path) -> None:
    """The gauges tell of every queue, the empty ones too, and the look ends when it is told to."""
    url = f"sqlite+aiosqlite:///{tmp_path}/d.db"
    await migrate_up(url)
    metrics, database, stop = Metrics(), Database(url), asyncio.Event()
    depths = Depths(database, metrics, every=0.01)
    try:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(depths.run(stop))
            await depths.look()
            stop.set()
    finally:
        await database.close()
    text = metrics.render().decode()
    for queue in (
        "turns.queued",
        "deliveries.dead",
        "events.untold",
        "jobs.running",
        "approvals.pending",
        "chats.dead",
    ):
        assert f'dovecote_queue_depth{{queue="{queue}"}} 0.0' in text
