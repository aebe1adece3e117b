"""G6: clients that come and go, and a broker that dies, never cost or double an event (scaled down)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from delivery.errors import Conflict, Unreachable
from delivery.event import Event, Kind
from delivery.streams import jetstream
from delivery.streams.connection import connect
from delivery.streams.layout import Layout, ensure
from nats_servers import NatsServer, nats_server
from stream_face import StreamFace, stream_face

CLIENTS = 20
RECONNECTS = 12
CONVERSATIONS = 4
KILLS = 2
EVENTS = 150


class Rig:
    """A server, a stream, and its face."""

    def __init__(self, server: NatsServer, events: jetstream.JetStream, face: StreamFace) -> None:
        self.server = server
        self.events = events
        self.face = face
        self.wrote = asyncio.Event()
        self.seqs: dict[str, list[int]] = {f"cnv_{number}": [0] for number in range(CONVERSATIONS)}

    async def written(self, count: int) -> None:
        """Wait until every conversation has so many events."""
        while min(len(seqs) for seqs in self.seqs.values()) < count:
            self.wrote.clear()
            await self.wrote.wait()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """Run everything against a real broker."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        link = await stack.enter_async_context(connect(server.url, token=server.token))
        await ensure(link, Layout(budget=500_000_000))
        events = await stack.enter_async_context(jetstream.opened(link, epoch="e1", check_every=2.0))
        yield Rig(server, events, await stack.enter_async_context(stream_face(events)))


class Follower:
    """A client that notes every event it gets, and reconnects where it stopped."""

    def __init__(self, rig: Rig, conversation: str, seed: int) -> None:
        self.rig = rig
        self.conversation = conversation
        self.seen: list[int] = []
        self.numbers: list[int] = []
        self.wrong: list[dict[str, Any]] = []
        self.reconnects = 0
        self.chance = random.Random(seed)

    @property
    def position(self) -> int:
        """The last seq seen."""
        return self.seen[-1] if self.seen else 0

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Reconnect so many times, then stay until everything has come."""
        while self.reconnects < RECONNECTS:
            await self._visit(session, self.chance.randint(1, 15))
            self.reconnects += 1
        await self._visit(session, None)

    async def _visit(self, session: aiohttp.ClientSession, frames: int | None) -> None:
        async with session.ws_connect("/ws") as socket:
            batch = self.chance.random() < 0.5
            await socket.send_json(
                {
                    "type": "subscribe",
                    "conversation": self.conversation,
                    "after": self.position,
                    "epoch": "e1",
                    "batch": batch,
                }
            )
            while frames is None or frames > 0:
                if self.numbers[-1:] == [EVENTS]:
                    return
                self._take(await socket.receive_json(timeout=60))
                frames = None if frames is None else frames - 1

    def _take(self, frame: dict[str, Any]) -> None:
        if frame["type"] in {"gap", "reset", "error"}:
            self.wrong.append(frame)
        for event in frame["items"] if frame["type"] == "events" else [frame]:
            if "v" in event:
                self.seen.append(event["seq"])
                self.numbers += [event["n"]] if "n" in event else []


async def write(rig: Rig, conversation: str, count: int) -> None:
    """Append lasting events with deltas between, as a relay and a turn do."""
    seqs = rig.seqs[conversation]
    for n in range(1, count + 1):
        event = Event.now(Kind.JOB_STARTED, conversation, {"padding": "x" * 200}).numbered(n)
        while True:
            try:
                seqs.append(await rig.events.append(event, expected=seqs[-1]))
                rig.wrote.set()
                break
            except (Unreachable, Conflict):
                await asyncio.sleep(0.01)
        if n % 3 == 0:
            data = {"message": f"msg_{n}", "attempt": 1, "text": "…"}
            await rig.events.whisper(Event.now(Kind.MESSAGE_DELTA, conversation, data))
        await asyncio.sleep(0.005)


async def test_no_event_is_lost_or_doubled_while_clients_and_broker_come_and_go(rig: Rig) -> None:
    """Every client ends with every lasting event once, in order, and was never told of a gap."""
    followers = [Follower(rig, f"cnv_{number % CONVERSATIONS}", number) for number in range(CLIENTS)]
    writers = [asyncio.create_task(write(rig, conversation, EVENTS)) for conversation in rig.seqs]
    async with rig.face.http() as session:
        reading = [asyncio.create_task(follower.run(session)) for follower in followers]
        for kill in range(KILLS):
            await rig.written(50 * (kill + 1))
            await rig.server.restart()
        await asyncio.gather(*writers)
        await asyncio.gather(*reading)
    assert sum(follower.reconnects for follower in followers) == CLIENTS * RECONNECTS
    for follower in followers:
        assert follower.wrong == []
        assert follower.numbers == list(range(1, EVENTS + 1))
        assert follower.seen == sorted(set(follower.seen))
