"""What every stream promises: in memory and on a real nats-server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delivery.broker import jetstream_events
from delivery.broker.connection import connect
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.memory_events import MemoryEvents
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.errors import AppendConflict, BrokerUnreachable
from delivery.events.event import Event, EventType
from delivery.events.port import EventStream, StoredEvent
from nats_servers import NatsServer, nats_server

RETAINED = 5
STREAM_CONFIG = StreamConfig(max_bytes=500_000_000, max_events_per_conversation=RETAINED)


def make_event(n: int, conversation: str = "cnv_a", **data: Any) -> Event:
    """Return a lasting event."""
    return Event.now(EventType.JOB_STARTED, conversation, data, turn="trn_1").numbered(n)


def delta(text: str, conversation: str = "cnv_a") -> Event:
    """Return a transient event."""
    return Event.now(EventType.MESSAGE_DELTA, conversation, {"text": text}, turn="trn_1")


async def appended(stream: EventStream, count: int, conversation: str = "cnv_a") -> list[int]:
    """Append so many events and return their seqs."""
    seqs = [0]
    for n in range(1, count + 1):
        seqs.append(await stream.append(make_event(n, conversation), expected=seqs[-1], account="acc"))
    return seqs[1:]


@asynccontextmanager
async def open_jetstream(directory: Path) -> AsyncIterator[tuple[NatsServer, JetStreamEvents]]:
    """Run a nats-server and open its stream."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(directory / "nats"))
        nats_connection = await stack.enter_async_context(connect(server.url, token=server.token))
        await ensure_streams(nats_connection, STREAM_CONFIG)
        yield (
            server,
            await stack.enter_async_context(jetstream_events.open_events(nats_connection, epoch="e1")),
        )


@pytest.fixture(params=["memory", "jetstream"])
async def stream(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStream]:
    """Open every kind of stream."""
    if request.param == "memory":
        yield MemoryEvents(max_events=RETAINED)
        return
    async with open_jetstream(tmp_path) as (_server, opened):
        yield opened


async def test_an_event_of_a_newer_version_is_read_as_it_is(stream: EventStream) -> None:
    """A newer replica wrote it: readers get it, and what follows it."""
    newer = replace(make_event(1, text="x"), type=EventType.read("pigeon.landed"))
    seq = await stream.append(newer, expected=0, account="acc")
    await stream.append(make_event(2), expected=seq, account="acc")
    found = await stream.read("cnv_a", after=0, limit=10, account="acc")
    assert [one.event.type for one in found] == ["pigeon.landed", EventType.JOB_STARTED]
    assert (found[0].type, found[0].transient) == ("pigeon.landed", False)
    assert found[0].event.encode(seq) == newer.encode(seq)
    assert json.loads(found[0].as_json())["type"] == "pigeon.landed"


async def next_event(follower: AsyncIterator[StoredEvent | None]) -> StoredEvent:
    """Return the next event of a follower, after any marked gaps."""
    async with asyncio.timeout(10):
        async for item in follower:
            if item is not None:
                return item
    raise AssertionError


async def test_events_are_read_back_in_order_after_a_position(stream: EventStream) -> None:
    """Reading after a seq gives the later events, in order, as they were written."""
    seqs = await appended(stream, 4)
    read = await stream.read("cnv_a", after=seqs[1], account="acc")
    assert [item.seq for item in read] == seqs[2:]
    assert [item.event.n for item in read] == [3, 4]
    assert [item.previous for item in read] == seqs[1:3]
    assert await stream.read("cnv_a", after=seqs[-1], account="acc") == []
    assert len(await stream.read("cnv_a", after=0, limit=2, account="acc")) == 2


async def test_the_same_event_twice_is_once(stream: EventStream) -> None:
    """Repeating an append gives the seq of the first one and stores nothing."""
    event = make_event(1)
    seq = await stream.append(event, expected=0, account="acc")
    assert await stream.append(event, expected=0, account="acc") == seq
    assert len(await stream.read("cnv_a", after=0, account="acc")) == 1


async def test_a_writer_who_is_late_is_refused(stream: EventStream) -> None:
    """An append that expects an older tail raises AppendConflict, and the tail shows the winner."""
    await stream.append(make_event(1), expected=0, account="acc")
    winner = make_event(2)
    seqs = await stream.read("cnv_a", after=0, account="acc")
    seq = await stream.append(winner, expected=seqs[0].seq, account="acc")
    with pytest.raises(AppendConflict):
        await stream.append(make_event(2), expected=seqs[0].seq, account="acc")
    tail = await stream.tail("cnv_a", account="acc")
    assert tail is not None
    assert (tail.seq, tail.n, tail.event_id) == (seq, 2, winner.id)


async def test_an_unknown_conversation_is_empty(stream: EventStream) -> None:
    """An unused conversation has nothing stored."""
    assert await stream.tail("cnv_none", account="acc") is None
    extent = await stream.bounds("cnv_none", account="acc")
    assert (extent.first_seq, extent.last_seq, extent.first_previous, extent.last_transient) == (
        0,
        0,
        0,
        None,
    )
    assert await stream.read("cnv_none", after=0, account="acc") == []


@pytest.mark.parametrize("name", ["*", ">", "a.b", "a b", "\r\n", "../x", "é🕊", "x" * 4096, ""])
async def test_conversations_never_mix_whatever_their_ids(stream: EventStream, name: str) -> None:
    """An id made of wildcards or separators names that conversation alone."""
    await appended(stream, 2, "cnv_a")
    await appended(stream, 1, name)
    assert [item.event.conversation for item in await stream.read(name, after=0, account="acc")] == [name]
    assert len(await stream.read("cnv_a", after=0, account="acc")) == 2


async def test_deltas_are_between_lasting_events_and_can_be_left_out(stream: EventStream) -> None:
    """A delta has a seq of its own, names the lasting event before it, and is optional to read."""
    first = await stream.append(make_event(1), expected=0, account="acc")
    await stream.publish_transient(delta("he"), account="acc")
    await stream.publish_transient(delta("llo"), account="acc")
    last = await stream.append(make_event(2), expected=first, account="acc")
    read = await stream.read("cnv_a", after=0, account="acc")
    assert [item.transient for item in read] == [False, True, True, False]
    assert [item.previous for item in read] == [0, first, first, first]
    assert [item.seq for item in await stream.read("cnv_a", after=0, transient=False, account="acc")] == [
        first,
        last,
    ]
    draft = (await stream.bounds("cnv_a", account="acc")).last_transient
    assert draft is not None
    assert draft.event.data == {"text": "llo"}


async def test_a_delta_follows_the_event_that_is_being_appended(stream: EventStream) -> None:
    """It names this event as the one before it."""
    appending = asyncio.create_task(stream.append(make_event(1), expected=0, account="acc"))
    await asyncio.sleep(0)
    await stream.publish_transient(delta("hello"), account="acc")
    read = await stream.read("cnv_a", after=0, account="acc")
    assert [(item.transient, item.previous) for item in read] == [(False, 0), (True, await appending)]


async def test_a_delta_is_dropped_while_the_broker_does_not_answer(tmp_path: Path) -> None:
    """Its agent does not wait for the event that is being appended, which is stored later."""
    async with open_jetstream(tmp_path) as (server, stream):
        server.freeze()
        appending = asyncio.create_task(stream.append(make_event(1), expected=0, account="acc"))
        await asyncio.sleep(0)
        await stream.publish_transient(delta("hello"), account="acc")
        assert not appending.done()
        server.thaw()
        await appending
        assert [item.transient for item in await stream.read("cnv_a", after=0, account="acc")] == [False]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_of_any_size_give_the_same_order(stream: EventStream, limit: int) -> None:
    """Lasting events and deltas are read in the order of the stream, however small the pages are."""
    written, last, n = list[str](), 0, 0
    for kind in ("lasting", "delta", "delta", "lasting", "lasting", "delta", "delta", "delta", "lasting"):
        if kind == "delta":
            await stream.publish_transient(delta(str(len(written))), account="acc")
        else:
            n += 1
            last = await stream.append(make_event(n, text=str(len(written))), expected=last, account="acc")
        written.append(str(len(written)))
    found = list[StoredEvent]()
    while batch := await stream.read(
        "cnv_a", after=found[-1].seq if found else 0, limit=limit, account="acc"
    ):
        assert len(batch) <= limit
        found += batch
    assert [one.event.data["text"] for one in found] == written


async def test_deltas_are_read_after_the_lasting_event_before_them_has_expired(stream: EventStream) -> None:
    """A delta whose predecessor is not stored any more is read like the others."""
    seqs = await appended(stream, 1)
    await stream.publish_transient(delta("kept"), account="acc")
    for n in range(2, RETAINED + 3):
        seqs.append(await stream.append(make_event(n), expected=seqs[-1], account="acc"))
    read = await stream.read("cnv_a", after=0, account="acc")
    assert [item.seq for item in read if not item.transient] == seqs[-RETAINED:]
    assert [item.event.data for item in read if item.transient] == [{"text": "kept"}]


async def test_deltas_never_push_lasting_events_out(stream: EventStream) -> None:
    """However many deltas come, the lasting events stay."""
    seqs = await appended(stream, 2)
    for number in range(3 * RETAINED):
        await stream.publish_transient(delta(str(number)), account="acc")
    lasting = [
        item.seq
        for item in await stream.read("cnv_a", after=0, limit=500, account="acc")
        if not item.transient
    ]
    assert lasting == seqs


async def test_a_trimmed_history_says_so(stream: EventStream) -> None:
    """The bounds have the first stored event and the position before it."""
    seqs = await appended(stream, RETAINED + 3)
    extent = await stream.bounds("cnv_a", account="acc")
    assert (extent.first_seq, extent.last_seq, extent.first_previous) == (seqs[3], seqs[-1], seqs[2])


async def test_a_follower_sees_what_is_appended_from_now_on(stream: EventStream) -> None:
    """Events appended while following arrive in order, with their positions, to all followers."""
    before = await stream.append(make_event(1), expected=0, account="acc")
    async with (
        stream.subscribe("cnv_a", account="acc") as one,
        stream.subscribe("cnv_a", account="acc") as other,
    ):
        seq = await stream.append(make_event(2, text="hi"), expected=before, account="acc")
        for follower in (one, other):
            seen = await next_event(follower)
            assert (seen.seq, seen.previous, seen.event.data) == (seq, before, {"text": "hi"})


async def test_a_follower_far_behind_must_read(stream: EventStream) -> None:
    """More than the buffer holds becomes one gap, after which the follower reads the stream."""
    async with (
        stream.subscribe("cnv_a", account="acc") as follower,
        stream.subscribe("cnv_a", account="acc") as watcher,
    ):
        seq = 0
        for n in range(1, 300):
            seq = await stream.append(make_event(n), expected=seq, account="acc")
            await next_event(watcher)
        async with asyncio.timeout(5):
            assert await anext(follower) is None


async def test_two_racing_writers_make_one_order(stream: EventStream) -> None:
    """Of many concurrent appends on one tail exactly one wins."""
    results = await asyncio.gather(
        *(stream.append(make_event(1), expected=0, account="acc") for _ in range(10)), return_exceptions=True
    )
    assert sum(isinstance(result, int) for result in results) == 1
    assert all(isinstance(result, int | AppendConflict) for result in results)


async def test_events_survive_the_death_of_the_broker(tmp_path: Path) -> None:
    """After SIGKILL of the server all confirmed events are there, appends work, followers must re-read."""
    async with AsyncExitStack() as stack:
        server: NatsServer = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        nats_connection = await stack.enter_async_context(connect(server.url, token=server.token))
        await ensure_streams(nats_connection, STREAM_CONFIG)
        events = await stack.enter_async_context(jetstream_events.open_events(nats_connection, epoch="e1"))
        seqs = await appended(events, 3)
        async with events.subscribe("cnv_a", account="acc") as follower:
            await server.kill()
            restarting = asyncio.create_task(server.start())
            seq = await events.append(make_event(4), expected=seqs[-1], account="acc")
            await restarting
            async with asyncio.timeout(5):
                assert await anext(follower) is None
        assert [item.seq for item in await events.read("cnv_a", after=0, account="acc")] == [*seqs, seq]


async def test_a_dead_broker_is_unreachable_and_deltas_are_dropped(tmp_path: Path) -> None:
    """Without a broker an append raises Unreachable and a delta is dropped silently."""
    async with open_jetstream(tmp_path) as (server, events):
        await server.kill()
        with pytest.raises(BrokerUnreachable):
            await events.append(make_event(1), expected=0, account="acc")
        await events.publish_transient(delta("lost"), account="acc")


async def test_a_purged_conversation_leaves_nothing_and_no_other_is_touched(stream: EventStream) -> None:
    """Durable and transient events of one conversation are purged, repeatedly; others keep theirs."""
    await appended(stream, 3)
    kept = await appended(stream, 2, "cnv_b")
    await stream.publish_transient(delta("half a wo"), account="acc")
    await stream.purge("cnv_a", account="acc")
    await stream.purge("cnv_a", account="acc")
    assert await stream.read("cnv_a", after=0, account="acc") == []
    assert await stream.tail("cnv_a", account="acc") is None
    assert [one.seq for one in await stream.read("cnv_b", after=0, account="acc")] == kept
