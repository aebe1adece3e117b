"""When positions begin to mean something else, and when they do not."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import update

from delivery.broker import checkpoints, epochs, jetstream_events
from delivery.broker.connection import connect
from delivery.broker.memory_events import MemoryEvents
from delivery.broker.stream_config import LogUsage, StreamConfig, StreamIdentity
from delivery.database.engine import Database
from delivery.database.tables import streams
from delivery.events import outbox
from delivery.events.event import Event, EventType
from delivery.events.relay import Relay
from delivery.events.replay import CaughtUp, Events, Reset, frames
from migrated import migrated_sqlite
from nats_servers import nats_server

MONDAY = "2026-11-16T08:00:00.123456789Z"
TUESDAY = "2026-11-17T08:00:00Z"


async def determine(database: Database, created: str, last_seq: int, *, lost: bool = False) -> str:
    """Look at a stream as a starting gateway does."""
    async with database.begin() as connection:
        before = await checkpoints.load_checkpoint(connection)
        found = StreamIdentity(created=created, last_seq=last_seq)
        return await checkpoints.determine_epoch(connection, before, found, may_have_lost=lost)


async def test_progress_keeps_the_epoch(database: Database) -> None:
    """A stream that only grows stays in its epoch, whichever replica checks."""
    first = await determine(database, MONDAY, 0)
    assert await determine(database, MONDAY, 10) == first
    assert await determine(database, MONDAY, 10) == first
    assert "-" not in first


async def test_a_recreated_stream_has_another_epoch(database: Database) -> None:
    """Deleted and made again, the same numbers mean other events."""
    first = await determine(database, MONDAY, 10)
    assert await determine(database, TUESDAY, 20) != first


async def test_a_stream_that_fell_back_is_another_epoch_for_good(database: Database) -> None:
    """Once it was shorter than remembered, the epoch has changed and stays changed."""
    first = await determine(database, MONDAY, 10)
    second = await determine(database, MONDAY, 9)
    assert second != first
    assert await determine(database, MONDAY, 30) == second
    assert await determine(database, MONDAY, 29) not in {first, second}


async def test_no_position_is_stored_of_an_epoch_that_has_ended(database: Database) -> None:
    """Else events that the stream lost would count as published: a replica may notice the loss later."""
    first = await determine(database, MONDAY, 0)
    stream, stop = MemoryEvents(epoch=first), asyncio.Event()
    relay = Relay(database, stream, lambda _point: None, is_present=checkpoints.is_present)
    async with database.begin() as connection:
        await outbox.create_stream(connection, conversation="cnv_1", account="acc", agent="agt")
        events = [Event.now(EventType.MESSAGE_RECEIVED, "cnv_1", {"text": "hi"})]
        recorded = (await outbox.record(connection, {"cnv_1": events}))["cnv_1"].events
    async with asyncio.TaskGroup() as group:
        group.create_task(relay.run(stop))
        relay.enqueue(recorded)
        assert await relay.get_seq(recorded[0], timeout=20) == 1
        assert await determine(database, MONDAY, 0, lost=True) != first
        stop.set()
    async with database.read() as connection:
        assert [one.conversation for one in await outbox.list_backlogs(connection)] == ["cnv_1"]


async def test_a_machine_that_went_down_begins_another_epoch(database: Database) -> None:
    """A stream that may have lost its end is not trusted, even if it looks complete."""
    first = await determine(database, MONDAY, 10)
    assert await determine(database, MONDAY, 10, lost=True) != first


async def test_replicas_that_look_at_different_times_agree(database: Database) -> None:
    """A replica that checked earlier and writes later starts no epoch and loses no progress."""
    first = await determine(database, MONDAY, 10)
    async with database.read() as connection:
        before = await checkpoints.load_checkpoint(connection)
    await determine(database, MONDAY, 50)
    async with database.begin() as connection:
        late = await checkpoints.determine_epoch(
            connection, before, StreamIdentity(created=MONDAY, last_seq=40)
        )
    assert late == first
    async with database.read() as connection:
        assert (await checkpoints.load_checkpoint(connection)) == checkpoints.StreamCheckpoint(
            created=MONDAY, high_water=50, bumps=0
        )


async def test_replicas_that_notice_the_same_loss_begin_one_epoch(database: Database) -> None:
    """Two who saw it fall back agree on one new epoch."""
    await determine(database, MONDAY, 10)
    async with database.read() as connection:
        before = await checkpoints.load_checkpoint(connection)
    found = StreamIdentity(created=MONDAY, last_seq=5)
    async with database.begin() as connection:
        one = await checkpoints.determine_epoch(connection, before, found)
    async with database.begin() as connection:
        assert await checkpoints.determine_epoch(connection, before, found) == one


async def test_readers_are_reset_when_the_stream_is_wiped_while_they_read(tmp_path: Path) -> None:
    """A deleted stream is made again, begins an epoch, and its readers get what is written from then on.

    What SQL has of the events before is published to it again.
    """
    url = await migrated_sqlite(tmp_path / "gateway.db")
    database, layout, stop = Database(url), StreamConfig(max_bytes=500_000_000), asyncio.Event()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        server = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        nats_connection = await stack.enter_async_context(connect(server.url, token=server.token))
        epoch = await epochs.open_streams(database, nats_connection, layout)
        events = await stack.enter_async_context(jetstream_events.open_events(nats_connection, epoch=epoch))
        seq = await events.append(
            Event.now(EventType.JOB_STARTED, "cnv_a", {}).numbered(1), expected=0, account="acc"
        )
        async with database.begin() as connection:
            await outbox.create_stream(connection, conversation="cnv_b", account="acc", agent="agt")
            event = Event.now(EventType.JOB_STARTED, "cnv_b", {})
            await outbox.record(connection, {"cnv_b": [event]})
            await connection.execute(update(streams).values(relayed_n=1, last_seq=seq + 1))
            assert not await outbox.list_backlogs(connection)
        watching = asyncio.create_task(epochs.run(database, nats_connection, layout, events, stop=stop))
        reader = frames(events, "cnv_a", after=0, account="acc")
        while not isinstance(await anext(reader), CaughtUp):
            pass
        await nats_connection.api_request("STREAM.DELETE.EVENTS")
        await server.restart()  # a reconnection makes the watch look at once
        async with asyncio.timeout(20):
            given = await anext(reader)
            while not (isinstance(given, Reset) and given.epoch != epoch):
                assert isinstance(given, Reset)  # the first reset may be that its position is ahead of all
                given = await anext(reader)
            again = await events.append(
                Event.now(EventType.JOB_STARTED, "cnv_a", {}).numbered(2), expected=seq, account="acc"
            )
            given = await anext(reader)
        assert isinstance(given, Events)
        assert [item.seq for item in given.items] == [again]
        async with database.read() as connection:
            (backlog,) = await outbox.list_backlogs(connection)
        assert (backlog.conversation, backlog.published_n, backlog.last_n) == ("cnv_b", 0, 1)
        stop.set()
        await watching


def _stream_info(**state: Any) -> dict[str, Any]:
    stored = {
        "bytes": 0,
        "messages": 0,
        "first_ts": "0001-01-01T00:00:00Z",
        "last_ts": "0001-01-01T00:00:00Z",
    }
    return {"ts": "2026-01-02T00:00:00Z", "state": stored | state, "config": {"max_bytes": 100}}


def test_the_days_of_the_log_need_an_hour_of_events() -> None:
    """An empty log and one of some minutes say nothing; later, the size is divided by the rate."""
    assert LogUsage.parse(_stream_info()) == LogUsage()
    minutes = _stream_info(bytes=50, messages=9, first_ts="2026-01-01T23:50:00.5Z")
    assert LogUsage.parse(minutes) == LogUsage(fill=0.5, days=None)
    half_a_day = _stream_info(bytes=50, messages=9, first_ts="2026-01-01T12:00:00Z")
    assert LogUsage.parse(half_a_day) == LogUsage(fill=0.5, days=1.0)


async def test_a_stream_ahead_of_the_database_is_created_again(database: Database, tmp_path: Path) -> None:
    """An event that SQL lacks begins an epoch on an empty stream; those that SQL has are published again."""
    layout, conversation, account = StreamConfig(max_bytes=500_000_000), "cnv_a", "acc_a"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        nats_connection = await stack.enter_async_context(connect(server.url, token=server.token))
        first = await epochs.open_streams(database, nats_connection, layout)
        events = await stack.enter_async_context(jetstream_events.open_events(nats_connection, epoch=first))
        async with database.begin() as connection:
            await outbox.create_stream(connection, conversation=conversation, account=account, agent="agt_a")
            recorded = await outbox.record(
                connection, {conversation: [Event.now(EventType.JOB_STARTED, conversation, {})]}
            )
        known = recorded[conversation].events[0]
        seq = await events.append(known, expected=0, account=account)
        async with database.begin() as connection:
            await outbox.mark_published(connection, [(conversation, 1, seq)])
        foreign = Event.now(EventType.JOB_STARTED, "cnv_of_another_database", {}).numbered(1)
        await events.append(foreign, expected=0, account=account)
        assert await epochs.open_streams(database, nats_connection, layout) == first
        later = Event.now(EventType.JOB_STARTED, conversation, {}).numbered(2)
        await events.append(later, expected=seq, account=account)
        second = await epochs.open_streams(database, nats_connection, layout)
        assert second != first
        assert await events.tail(conversation, account=account) is None
        async with database.read() as connection:
            backlogs = await outbox.list_backlogs(connection)
        assert [(one.conversation, one.published_n) for one in backlogs] == [(conversation, 0)]
        assert await epochs.open_streams(database, nats_connection, layout) == second


def test_a_log_that_is_full_within_an_hour_shows_its_days() -> None:
    """A small log of a busy gateway never holds an hour of events, and is the one to warn of."""
    full = _stream_info(bytes=80, messages=9, first_ts="2026-01-01T23:48:00Z")
    assert LogUsage.parse(full) == LogUsage(fill=0.8, days=900 / 86_400)
