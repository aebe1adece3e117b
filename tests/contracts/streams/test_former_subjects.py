"""A stream with the subjects of an earlier version: its events are published again, and none is lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from sqlalchemy import delete

from delivery.broker import checkpoints, epochs, jetstream_events
from delivery.broker.connection import NatsConnection, connect
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.message_codec import MESSAGE_ID, encode_headers
from delivery.broker.stream_config import EVENTS, StreamConfig, get_identity, subject_token
from delivery.database.engine import Database
from delivery.database.tables import outbox as outbox_table
from delivery.events import outbox
from delivery.events.event import Event, EventType
from delivery.events.relay import Relay
from delivery.events.replay import Events, Reset, frames
from migrated import migrated_sqlite
from nats_servers import nats_server

CONFIG = StreamConfig(replicas=1, max_bytes=500_000_000)
ACCOUNTS = {"cnv_a": "acc_1", "cnv_b": "acc_2"}


async def _record(database: Database, conversation: str, words: list[str]) -> list[Event]:
    events = [Event.now(EventType.MESSAGE_RECEIVED, conversation, {"text": word}) for word in words]
    async with database.begin() as connection:
        return (await outbox.record(connection, {conversation: events}))[conversation].events


async def _make_former_stream(nats: NatsConnection, database: Database) -> None:
    """Publish events of two conversations as the earlier version did; one event is only in SQL."""
    former = CONFIG.streams()[EVENTS] | {"name": EVENTS, "subjects": ["ev.*.e", "ev.*.d", "lease.*.*"]}
    assert "error" not in await nats.api_request(f"STREAM.CREATE.{EVENTS}", former)
    for conversation, account in ACCOUNTS.items():
        async with database.begin() as connection:
            await outbox.create_stream(connection, conversation=conversation, account=account, agent="agt")
        seq = 0
        for event in await _record(database, conversation, ["gone", "b", "c"]):
            headers = encode_headers(event, previous=seq, epoch="") | {MESSAGE_ID: event.id}
            subject = f"ev.{subject_token(conversation)}.e"
            seq = (await nats.publish(subject, event.encode(), headers)).seq
        async with database.begin() as connection:
            await outbox.mark_published(connection, [(conversation, 3, seq)])
            expired = (outbox_table.c.conversation == conversation) & (outbox_table.c.n == 1)
            await connection.execute(delete(outbox_table).where(expired))
    await _record(database, "cnv_a", ["d"])


async def _publish_backlogs(database: Database, stream: JetStreamEvents) -> None:
    """Run a relay until nothing is behind."""
    relay, stop = Relay(database, stream, lambda _point: None), asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(relay.run(stop))
        while True:
            async with database.read() as connection:
                behind = await outbox.list_backlogs(connection)
            if not behind:
                break
            for backlog in behind:
                relay.catch_up(backlog)
            await asyncio.sleep(0.05)
        stop.set()


async def _texts(stream: JetStreamEvents, conversation: str, account: str) -> list[str]:
    stored = await stream.read(conversation, account=account, after=0)
    return [item.event.data["text"] for item in stored]


async def test_events_on_former_subjects_are_published_again(tmp_path: Path) -> None:
    """A first start moves all events of the outbox, a repeated one changes nothing, a reader is reset."""
    async with AsyncExitStack() as stack:
        database = Database(await migrated_sqlite(tmp_path / "gateway.db"))
        stack.push_async_callback(database.close)
        server = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        nats = await stack.enter_async_context(connect(server.url, token=server.token))
        await _make_former_stream(nats, database)
        identity = await get_identity(nats)
        async with database.begin() as connection:
            former_epoch = await checkpoints.determine_epoch(connection, None, identity)
        epoch = await epochs.open_streams(database, nats, CONFIG)
        assert epoch != former_epoch
        stream = await stack.enter_async_context(jetstream_events.open_events(nats, epoch=epoch))
        await _publish_backlogs(database, stream)
        assert await _texts(stream, "cnv_a", "acc_1") == ["b", "c", "d"]
        assert await _texts(stream, "cnv_b", "acc_2") == ["b", "c"]
        assert await _texts(stream, "cnv_b", "acc_1") == []
        found = [
            frame
            async for frame in frames(
                stream, "cnv_a", account="acc_1", after=2, epoch=former_epoch, live=False
            )
        ]
        assert isinstance(found[1], Reset)
        assert [item.event.n for frame in found if isinstance(frame, Events) for item in frame.items] == [
            2,
            3,
            4,
        ]
        assert await epochs.open_streams(database, nats, CONFIG) == epoch
        info = await nats.api_request(f"STREAM.INFO.{EVENTS}", {"subjects_filter": ">"})
        assert {subject.count(".") for subject in info["state"]["subjects"]} == {4}
        assert await _texts(stream, "cnv_a", "acc_1") == ["b", "c", "d"]
