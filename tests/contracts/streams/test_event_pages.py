"""What pages of events and server-sent events promise to their clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from delivery.broker.memory_events import MemoryEvents
from delivery.events.event import Event, EventType
from delivery.events.port import StoredEvent
from stream_server import KEY, RETAINED, StreamServer, append_events, stream_server


async def test_pages_lead_to_the_live_edge(server: StreamServer, events: MemoryEvents) -> None:
    """A page holds its events, the extent, and where to go on; the last one leads nowhere."""
    seqs = await append_events(events, 5)
    async with server.http() as session:
        async with session.get("/conversations/cnv_a/events", params={"after": 0, "limit": 3}) as answer:
            page = await answer.json()
        assert [item["seq"] for item in page["items"]] == seqs[:3]
        assert (page["next"], page["first_seq"], page["last_seq"], page["epoch"]) == (
            seqs[2],
            seqs[0],
            seqs[4],
            "e1",
        )
        async with session.get("/conversations/cnv_a/events", params={"after": page["next"]}) as answer:
            page = await answer.json()
        assert [item["seq"] for item in page["items"]] == seqs[3:]
        assert page["next"] is None


async def test_a_page_has_what_was_recorded_before_it(server: StreamServer, events: MemoryEvents) -> None:
    """A client that has seen a turn's end finds its events, although the relay publishes them later."""
    seqs = await append_events(events, 1)
    server.unpublished.append(Event.now(EventType.JOB_STARTED, "cnv_a", {}).numbered(2))
    async with server.http() as session, session.get("/conversations/cnv_a/events") as answer:
        page = await answer.json()
    assert [item["seq"] for item in page["items"]] == [*seqs, page["last_seq"]]
    assert len(page["items"]) == 2


async def test_pages_report_gaps_and_resets(server: StreamServer, events: MemoryEvents) -> None:
    """What a page cannot give is named in it."""
    await append_events(events, RETAINED + 3)
    async with server.http() as session:
        async with session.get("/conversations/cnv_a/events?after=1") as answer:
            assert (await answer.json())["gap"]["to"] == 3
        async with session.get("/conversations/cnv_a/events?after=e0-5") as answer:
            assert (await answer.json())["reset"]["epoch"] == "e1"
        for wrong in ("x", "-1", "1.5", "e1-"):
            async with session.get("/conversations/cnv_a/events", params={"after": wrong}) as answer:
                assert answer.status == 422


class SseReader:
    """A reader of server-sent events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> tuple[str, str, dict[str, Any]]:
        """Return id, event and data of the next event."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(10):
            while "data" not in fields:
                async for raw in self._answer.content:
                    line = raw.decode().rstrip("\n")
                    if not line:
                        break
                    name, _, value = line.partition(": ")
                    fields[name] = value
        return fields.get("id", ""), fields["event"], json.loads(fields["data"])


async def test_server_sent_events_resume_by_their_id(server: StreamServer, events: MemoryEvents) -> None:
    """The id of an event is the cursor to come back with."""
    seqs = await append_events(events, 3)
    path, accept = "/conversations/cnv_a/events", {"Accept": "text/event-stream"}
    async with server.http() as session:
        async with session.get(path, params={"after": 0}, headers=accept) as answer:
            assert answer.content_type == "text/event-stream"
            mark, kind, first = await SseReader(answer).next()
        assert (mark, kind, first["seq"]) == (f"e1-{seqs[0]}", "job.started", seqs[0])
        async with session.get(path, headers=accept | {"Last-Event-ID": mark}) as answer:
            sent = SseReader(answer)
            assert [(await sent.next())[2]["seq"] for _ in range(2)] == seqs[1:]
            assert (await sent.next())[1] == "caught_up"
            later = await append_events(events, 1)
            assert (await sent.next())[0] == f"e1-{later[0]}"
            events.begin_epoch("e2")
            assert (await sent.next())[1:] == (
                "reset",
                {
                    "type": "reset",
                    "epoch": "e2",
                    "snapshot": "/conversations/cnv_a/snapshot",
                    "conversation": "cnv_a",
                },
            )
            assert (await sent.next())[0] == f"e2-{seqs[0]}"


@pytest.mark.parametrize("scopes", [None, frozenset({"chat"})])
async def test_server_sent_events_end_with_their_key(
    server: StreamServer, scopes: frozenset[str] | None
) -> None:
    """A key that is revoked or may not read any more ends the stream."""
    async with (
        server.http() as session,
        session.get("/conversations/cnv_a/events", headers={"Accept": "text/event-stream"}) as answer,
    ):
        assert (await SseReader(answer).next())[1] == "caught_up"
        del server.valid[KEY]
        server.valid |= {KEY: scopes} if scopes is not None else {}
        await server.readers.check_keys(server.live_scopes)
        async with asyncio.timeout(5):
            await answer.content.read()


async def test_server_sent_events_need_no_other_scope(server: StreamServer, events: MemoryEvents) -> None:
    """A stream goes on if its key may still read."""
    async with (
        server.http() as session,
        session.get("/conversations/cnv_a/events", headers={"Accept": "text/event-stream"}) as answer,
    ):
        sent = SseReader(answer)
        assert (await sent.next())[1] == "caught_up"
        server.valid[KEY] = frozenset({"read"})
        await server.readers.check_keys(server.live_scopes)
        await append_events(events, 1)
        async with asyncio.timeout(5):
            assert (await sent.next())[1] == "job.started"


class CountedEvents(MemoryEvents):
    """A stream that counts how often it is read."""

    reads = 0

    async def read(
        self, conversation: str, *, account: str, after: int, limit: int = 100, transient: bool = True
    ) -> Sequence[StoredEvent]:
        """Return stored events in order."""
        self.reads += 1
        return await super().read(
            conversation, account=account, after=after, limit=limit, transient=transient
        )


async def test_a_page_costs_what_it_holds() -> None:
    """Each page read all events up to the live edge: all pages of a conversation, its square."""
    events = CountedEvents(epoch="e1")
    seqs = await append_events(events, 1000)
    async with stream_server(events) as server, server.http() as session:
        async with session.get("/conversations/cnv_a/events", params={"after": 0, "limit": 10}) as answer:
            page = await answer.json()
        assert ([item["seq"] for item in page["items"]], page["next"]) == (seqs[:10], seqs[9])
        assert events.reads == 1
