"""What a replay asks of the broker: few requests, and none whose cost grows with other conversations."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg

from delivery.broker import jetstream_events
from delivery.broker.connection import NatsConnection, connect
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.events.event import Event, EventType
from delivery.events.replay import CaughtUp, Events, frames
from nats_servers import nats_server

CONVERSATION = "cnv_a"
API = "$JS.API."
EVENTS_READ = 300


class RequestLog:
    """The requests to read messages that the broker has received."""

    def __init__(self, observer: NatsConnection) -> None:
        self._observer = observer
        self._requests = list[dict[str, Any]]()

    async def record(self, message: Msg) -> None:
        """Record a request of any client."""
        call = message.subject.removeprefix(API)
        if call.startswith(("DIRECT.GET", "STREAM.MSG.GET")):
            self._requests.append({"call": call, **json.loads(message.data or b"{}")})

    async def take(self) -> list[dict[str, Any]]:
        """Return the requests since the last call."""
        for _ in range(2):  # what was sent before the answer has been received with it
            await self._observer.api_request("INFO")
        taken, self._requests = self._requests, []
        return taken


@asynccontextmanager
async def _observed_stream(directory: Path) -> AsyncIterator[tuple[JetStreamEvents, RequestLog]]:
    """Open a stream on a nats-server, and record the requests to read messages."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(directory))
        nats = await stack.enter_async_context(connect(server.url, token=server.token))
        observer = await stack.enter_async_context(connect(server.url, token=server.token))
        await ensure_streams(nats, StreamConfig(max_bytes=500_000_000))
        stream = await stack.enter_async_context(jetstream_events.open_events(nats, epoch="e1"))
        log = RequestLog(observer)
        await stack.enter_async_context(observer.subscribe(f"{API}>", log.record))
        yield stream, log


async def test_a_replay_reads_literal_subjects_in_few_requests(tmp_path: Path) -> None:
    """No request has a wildcard, which would search the whole stream; 300 events take a handful of them."""
    async with _observed_stream(tmp_path / "nats") as (stream, log):
        seq = await _append_many(stream)
        await log.take()
        found = [frame async for frame in frames(stream, CONVERSATION, after=0, live=False, account="acc")]
        requests = await log.take()
    assert found[-1] == CaughtUp(seq=seq)
    assert sum(len(frame.items) for frame in found if isinstance(frame, Events)) == EVENTS_READ
    asked = [str(one.get("next_by_subj") or one.get("last_by_subj")) for one in requests]
    assert not [subject for subject in asked if "*" in subject or ">" in subject], asked
    assert 4 <= len(requests) <= 5, requests  # three for the bounds, one for each page of 256


async def test_deltas_are_read_only_for_an_unfinished_message(tmp_path: Path) -> None:
    """A reader of complete messages asks for no delta; one more request finds those of an open message."""
    async with _observed_stream(tmp_path / "nats") as (stream, log):
        received = Event.now(EventType.MESSAGE_RECEIVED, CONVERSATION, {"text": "hi"}, turn="trn_1")
        seq = await stream.append(received.numbered(1), expected=0, account="acc")
        await stream.publish_transient(_delta("he", "msg_1"), account="acc")
        answered = Event.now(EventType.MESSAGE_COMPLETED, CONVERSATION, {"message": "msg_1"}, turn="trn_1")
        await stream.append(answered.numbered(2), expected=seq, account="acc")
        await log.take()
        complete = [frame async for frame in frames(stream, CONVERSATION, after=0, live=False, account="acc")]
        requests_of_complete = await log.take()
        await stream.publish_transient(_delta("wor", "msg_2"), account="acc")
        await log.take()
        unfinished = [
            frame async for frame in frames(stream, CONVERSATION, after=0, live=False, account="acc")
        ]
        requests_of_unfinished = await log.take()
    assert [_types(one) for one in (complete, unfinished)] == [
        ["message.received", "message.completed"],
        ["message.received", "message.completed", "message.delta"],
    ]
    assert [_pages_of_deltas(one) for one in (requests_of_complete, requests_of_unfinished)] == [0, 1]
    assert len(requests_of_complete) >= 4  # the bounds and a page


async def test_a_reader_does_not_wait_for_deltas_that_were_removed(tmp_path: Path) -> None:
    """The turn ends, and its deltas are removed, while the reader has read the first page."""
    async with _observed_stream(tmp_path / "nats") as (stream, log):
        seq = await _append_many(stream)
        await stream.publish_transient(_delta("he", "msg_1"), account="acc")
        reader = frames(stream, CONVERSATION, after=0, live=False, account="acc")
        found = [await anext(reader), await anext(reader)]
        ended = Event.now(EventType.TURN_CANCELLED, CONVERSATION, {}, turn="trn_1")
        await stream.append(ended.numbered(EVENTS_READ + 1), expected=seq, account="acc")
        await stream.remove_deltas()
        await log.take()
        found += [frame async for frame in reader]
        requests = await log.take()
    assert len(_types(found)) == EVENTS_READ
    assert found[-1] == CaughtUp(seq=seq + 1)
    assert len(requests) <= 6, requests  # a reader that waits for the delta asks forty times


async def _append_many(stream: JetStreamEvents) -> int:
    """Append more events than a page has, and return the last seq."""
    seq = 0
    for n in range(1, EVENTS_READ + 1):
        event = Event.now(EventType.JOB_STARTED, CONVERSATION, {"n": n}, turn="trn_1")
        seq = await stream.append(event.numbered(n), expected=seq, account="acc")
    return seq


def _delta(text: str, message: str) -> Event:
    return Event.now(EventType.MESSAGE_DELTA, CONVERSATION, {"text": text, "message": message}, turn="trn_1")


def _types(found: list[Any]) -> list[str]:
    return [str(item.type) for frame in found if isinstance(frame, Events) for item in frame.items]


def _pages_of_deltas(requests: list[dict[str, Any]]) -> int:
    return len([one for one in requests if str(one.get("next_by_subj", "")).endswith(".d")])
