"""A reader of a conversation gets everything once, in order, or a frame that names what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delivery.broker import jetstream_events
from delivery.broker.connection import connect
from delivery.broker.memory_events import MemoryEvents
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.events.event import Event, EventType
from delivery.events.port import EventStream
from delivery.events.replay import CaughtUp, Events, Frame, Gap, Reset, Subscribed, frames
from nats_servers import nats_server

RETAINED = 6
CONVERSATION = "cnv_a"


class EventWriter:
    """Writes lasting events and deltas, and keeps what it wrote."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self.seqs: list[int] = []

    async def append_event(self, kind: EventType = EventType.JOB_STARTED, **data: Any) -> int:
        """Append a lasting event."""
        event = Event.now(kind, CONVERSATION, data, turn="trn_1").numbered(len(self.seqs) + 1)
        self.seqs.append(
            await self.stream.append(event, expected=self.seqs[-1] if self.seqs else 0, account="acc")
        )
        return self.seqs[-1]

    async def publish_delta(self, text: str, message: str = "msg_1", attempt: int = 1) -> None:
        """Publish a delta, which is not stored."""
        data = {"message": message, "attempt": attempt, "part": 0, "text": text}
        await self.stream.publish_transient(
            Event.now(EventType.MESSAGE_DELTA, CONVERSATION, data, turn="trn_1"), account="acc"
        )

    async def publish_output(self, text: str, call: str) -> None:
        """Publish what a command prints."""
        data = {"call": call, "stream": "stdout", "text": text, "attempt": 1}
        await self.stream.publish_transient(
            Event.now(EventType.TOOL_DELTA, CONVERSATION, data, turn="trn_1"), account="acc"
        )


@pytest.fixture(params=["memory", "jetstream"])
async def stream(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStream]:
    """Open every kind of stream."""
    if request.param == "memory":
        yield MemoryEvents(epoch="e1", max_events=RETAINED)
        return
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        nats_connection = await stack.enter_async_context(connect(server.url, token=server.token))
        await ensure_streams(
            nats_connection, StreamConfig(max_bytes=500_000_000, max_events_per_conversation=RETAINED)
        )
        yield await stack.enter_async_context(jetstream_events.open_events(nats_connection, epoch="e1"))


@pytest.fixture
def writer(stream: EventStream) -> EventWriter:
    """Return a writer to the stream."""
    return EventWriter(stream)


async def replayed(stream: EventStream, after: int | None, **options: Any) -> list[Frame]:
    """Return the frames up to the live edge."""
    return [
        frame
        async for frame in frames(stream, CONVERSATION, after=after, live=False, **options, account="acc")
    ]


def seqs_of(given_frames: list[Frame]) -> list[int]:
    """Return the seqs of all events given."""
    return [item.seq for frame in given_frames if isinstance(frame, Events) for item in frame.items]


def texts_of(given_frames: list[Frame]) -> list[str]:
    """Return the texts of all deltas given."""
    return [
        item.event.data["text"]
        for frame in given_frames
        if isinstance(frame, Events)
        for item in frame.items
        if item.transient
    ]


async def test_replay_gives_what_came_after(stream: EventStream, writer: EventWriter) -> None:
    """A reader gets the extent, what it missed, and the live edge."""
    for _ in range(4):
        await writer.append_event()
    found = await replayed(stream, writer.seqs[1])
    assert found[0] == Subscribed(epoch="e1", first_seq=writer.seqs[0], last_seq=writer.seqs[3])
    assert seqs_of(found) == writer.seqs[2:]
    assert found[-1] == CaughtUp(seq=writer.seqs[3])


async def test_live_only_gives_nothing_of_the_past(stream: EventStream, writer: EventWriter) -> None:
    """Without a position a reader starts at the live edge."""
    await writer.append_event()
    found = await replayed(stream, None)
    assert seqs_of(found) == []
    assert found[-1] == CaughtUp(seq=writer.seqs[0])


async def test_an_empty_conversation_is_caught_up_at_zero(stream: EventStream) -> None:
    """Nothing was written: no events, no gap, no reset."""
    assert await replayed(stream, 0) == [
        Subscribed(epoch="e1", first_seq=0, last_seq=0),
        CaughtUp(seq=0),
    ]


async def test_a_conversation_whose_events_are_all_gone_gets_a_gap(stream: EventStream) -> None:
    """Once: not again with the next event. A reader of another epoch gets a reset alone."""

    async def published_seq(_conversation: str) -> int:
        return 7

    found = await replayed(stream, 0, published_seq=published_seq)
    assert found[1:] == [Gap(first=1, last=7), CaughtUp(seq=0)]
    other = await replayed(stream, 0, epoch="e0", published_seq=published_seq)
    assert other[1:] == [Reset(epoch="e1"), CaughtUp(seq=0)]
    reading = frames(stream, CONVERSATION, after=0, account="acc", published_seq=published_seq)
    async with aclosing(reading), asyncio.timeout(30):
        assert [await anext(reading) for _ in range(3)][2] == CaughtUp(seq=0)
        for conversation, expected in (("cnv_b", 0), (CONVERSATION, 7)):
            event = Event.now(EventType.JOB_STARTED, conversation, {}).numbered(expected + 1)
            await stream.append(event, expected=expected, account="acc")
        assert isinstance(await anext(reading), Events)


async def test_the_first_event_of_a_new_incarnation_gets_a_gap(stream: EventStream) -> None:
    """Its previous event was in the stream before, so a reader from the start gets a gap."""
    other = Event.now(EventType.JOB_STARTED, "cnv_b", {}).numbered(1)
    before = await stream.append(other, expected=0, account="acc")
    event = Event.now(EventType.JOB_STARTED, CONVERSATION, {}).numbered(7)
    seq = await stream.append(event, expected=50, account="acc")
    found = await replayed(stream, 0)
    assert found[1] == Gap(first=1, last=before)
    assert seqs_of(found) == [seq]


async def test_a_trimmed_position_gets_a_gap(stream: EventStream, writer: EventWriter) -> None:
    """A position older than the first stored event gets the first and last missing seq, then the rest."""
    for _ in range(RETAINED + 4):
        await writer.append_event()
    found = await replayed(stream, writer.seqs[0])
    assert found[1] == Gap(first=writer.seqs[0] + 1, last=writer.seqs[3])
    assert seqs_of(found) == writer.seqs[4:]
    from_start = await replayed(stream, 0)
    assert from_start[1] == Gap(first=1, last=writer.seqs[3])
    assert seqs_of(await replayed(stream, writer.seqs[3])) == writer.seqs[4:]
    assert not any(isinstance(frame, Gap) for frame in await replayed(stream, writer.seqs[3]))


@pytest.mark.parametrize("beyond", [1, 1000, 2**80])
async def test_a_position_ahead_of_the_tail_is_reset(
    stream: EventStream, writer: EventWriter, beyond: int
) -> None:
    """An unknown position gets a reset and everything stored."""
    for _ in range(RETAINED + 2):
        await writer.append_event()
    found = await replayed(stream, writer.seqs[-1] + beyond)
    assert found[1] == Reset(epoch="e1")
    assert seqs_of(found) == writer.seqs[2:]
    assert not any(isinstance(frame, Gap) for frame in found)


async def test_a_position_of_another_epoch_is_reset(stream: EventStream, writer: EventWriter) -> None:
    """A position given in another epoch is reset even when the number exists here."""
    for _ in range(3):
        await writer.append_event()
    found = await replayed(stream, writer.seqs[1], epoch="e0")
    assert found[1] == Reset(epoch="e1")
    assert seqs_of(found) == writer.seqs
    assert seqs_of(await replayed(stream, writer.seqs[1], epoch="e1")) == writer.seqs[2:]


async def test_deltas_of_a_complete_message_are_not_replayed(
    stream: EventStream, writer: EventWriter
) -> None:
    """A message sent in deltas is delivered complete."""
    await writer.append_event()
    await writer.publish_delta("he")
    await writer.publish_delta("llo")
    await writer.append_event(EventType.MESSAGE_COMPLETED, message="msg_1", text="hello")
    found = await replayed(stream, 0)
    assert texts_of(found) == []
    assert seqs_of(found) == writer.seqs


async def test_deltas_of_an_unfinished_message_are_replayed(stream: EventStream, writer: EventWriter) -> None:
    """The message in progress is replayed with all its deltas, the one before it only as a whole."""
    await writer.publish_delta("old", "msg_1")
    await writer.append_event(EventType.MESSAGE_COMPLETED, message="msg_1", text="old")
    await writer.publish_delta("ne", "msg_2")
    await writer.append_event(EventType.TOOL_CALLED)
    await writer.publish_delta("w", "msg_2")
    assert texts_of(await replayed(stream, 0)) == ["ne", "w"]
    assert texts_of(await replayed(stream, 0, deltas=False)) == []


async def test_deltas_of_a_superseded_attempt_are_not_replayed(
    stream: EventStream, writer: EventWriter
) -> None:
    """After a restart only the present attempt counts."""
    await writer.publish_delta("first try", attempt=1)
    await writer.append_event(EventType.TURN_RESTARTED, attempt=2)
    assert texts_of(await replayed(stream, 0)) == []
    await writer.publish_delta("second try", attempt=2)
    assert texts_of(await replayed(stream, 0)) == ["second try"]


async def test_deltas_overtaken_by_an_earlier_message_are_kept(
    stream: EventStream, writer: EventWriter
) -> None:
    """A completion that is relayed late does not swallow the next message's first deltas."""
    await writer.publish_delta("one", "msg_1")
    await writer.publish_delta("two", "msg_2")
    await writer.append_event(EventType.MESSAGE_COMPLETED, message="msg_1", text="one")
    assert texts_of(await replayed(stream, 0)) == ["two"]


async def test_output_of_a_complete_call_is_not_replayed(stream: EventStream, writer: EventWriter) -> None:
    """Of a running call it is; the end of a message before it does not matter."""
    await writer.publish_output("one", "call_1")
    await writer.append_event(EventType.TOOL_COMPLETED, call="call_1")
    assert texts_of(await replayed(stream, 0)) == []
    await writer.publish_output("two", "call_2")
    await writer.append_event(EventType.MESSAGE_COMPLETED, message="msg_1", text="said")
    await writer.append_event(EventType.TOOL_COMPLETED, call="call_1")
    assert texts_of(await replayed(stream, 0)) == ["two"]
    assert texts_of(await replayed(stream, 0, deltas=False)) == []


@asynccontextmanager
async def reading(
    stream: EventStream, after: int | None, **options: Any
) -> AsyncIterator[Callable[..., Any]]:
    """Read frames in the background; the given function waits until a condition holds of them."""
    seen: list[Frame] = []
    changed = asyncio.Event()

    async def read() -> None:
        async with aclosing(frames(stream, CONVERSATION, after=after, **options, account="acc")) as source:
            async for frame in source:
                seen.append(frame)
                changed.set()

    async def until(condition: Callable[[list[Frame]], bool]) -> list[Frame]:
        async with asyncio.timeout(5):
            while not condition(seen):
                changed.clear()
                await changed.wait()
        return seen

    task = asyncio.create_task(read())
    try:
        yield until
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def has_caught_up(seen: list[Frame]) -> bool:
    """Return whether the live edge was reached."""
    return any(isinstance(frame, CaughtUp) for frame in seen)


async def test_a_reader_goes_on_live(stream: EventStream, writer: EventWriter) -> None:
    """After the live edge events come as they are appended, deltas among them."""
    await writer.append_event()
    async with reading(stream, 0) as until:
        await until(has_caught_up)
        await writer.publish_delta("hi")
        await writer.append_event()
        seen = await until(lambda seen: len(seqs_of(seen)) == 3)
        assert texts_of(seen) == ["hi"]
        assert [seqs_of(seen)[0], seqs_of(seen)[2]] == writer.seqs


async def test_a_reader_learns_of_a_new_epoch_while_it_reads(
    stream: EventStream, writer: EventWriter
) -> None:
    """When positions start again every reader gets a reset, and what is stored."""
    await writer.append_event()
    async with reading(stream, None) as until:
        await until(has_caught_up)
        stream.begin_epoch("e2")  # type: ignore[attr-defined]
        seen = await until(lambda seen: bool(seqs_of(seen)))
        assert Reset(epoch="e2") in seen
        assert seqs_of(seen) == writer.seqs


async def test_many_events_at_once_reach_a_reader_who_is_behind(
    stream: EventStream, writer: EventWriter
) -> None:
    """More than a follower's buffer holds is read from the stream; what is trimmed is named."""
    async with reading(stream, 0) as until:
        await until(has_caught_up)
        for _ in range(600):
            await writer.append_event()
        seen = await until(lambda seen: writer.seqs[-1] in seqs_of(seen))
    position = 0
    for frame in seen:
        if isinstance(frame, Gap):
            assert frame.first == position + 1
            position = frame.last
        if isinstance(frame, Events):
            for item in frame.items:
                assert item.previous <= position < item.seq
                position = item.seq


Action = tuple[str, int]
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["fact", "say", "finish", "restart", "doubt", "drop"]), st.integers(1, 9)),
    max_size=30,
)


@given(before=ACTIONS, during=ACTIONS, after=st.integers(0, 60), keep=st.integers(1, 8))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_history_is_given_once_in_order_or_named_as_missing(
    before: list[Action], during: list[Action], after: int, keep: int
) -> None:
    """Whatever is written and lost on the way, positions grow and every lasting event is covered."""
    asyncio.run(_history(before, during, after, keep))


async def _history(before: list[Action], during: list[Action], after: int, keep: int) -> None:
    stream = MemoryEvents(epoch="e1", max_events=keep)
    writer = EventWriter(stream)
    await _apply(stream, writer, before)
    tail = (await stream.bounds(CONVERSATION, account="acc")).last_seq
    async with reading(stream, after) as until:
        await until(has_caught_up)
        await _apply(stream, writer, during)
        stream.lose_next(0)
        last = await writer.append_event()
        seen = await until(lambda seen: last in seqs_of(seen))
    covered, position = set(), after
    for frame in seen:
        if isinstance(frame, Reset):
            assert after > tail
            covered |= {
                seq
                for seq in writer.seqs
                if seq < (await stream.bounds(CONVERSATION, account="acc")).first_seq
            }
            position = 0
        elif isinstance(frame, Gap):
            assert position < frame.first <= frame.last
            covered |= set(range(frame.first, frame.last + 1))
            position = frame.last
        elif isinstance(frame, Events):
            for item in frame.items:
                assert item.seq > position
                position = item.seq
                covered.add(item.seq)
    assert {seq for seq in writer.seqs if seq > (0 if after > tail else after)} <= covered


async def _apply(stream: MemoryEvents, writer: EventWriter, actions: list[Action]) -> None:
    for what, number in actions:
        match what:
            case "fact":
                await writer.append_event()
            case "say":
                await writer.publish_delta(str(number), f"msg_{number % 3}")
            case "finish":
                await writer.append_event(EventType.MESSAGE_COMPLETED, message=f"msg_{number % 3}", text="")
            case "restart":
                await writer.append_event(EventType.TURN_RESTARTED, attempt=number)
            case "doubt":
                stream.mark_gap()
            case "drop":
                stream.lose_next(number)
        await asyncio.sleep(0)
