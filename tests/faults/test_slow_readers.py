"""G7: clients that do not read are closed with a retryable code; other clients are not affected (scaled)."""

from __future__ import annotations

import asyncio
import json
import resource
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from delivery.broker.memory_events import MemoryEvents
from delivery.events.event import Event, EventType
from raw_socket import CLOSE, TEXT, RawSocket, raw_socket
from stream_server import KEY, StreamServer, stream_server

SLOW = 40
HEALTHY = 5
EVENTS = 1500
PADDING = "x" * 4096
TOO_SLOW = 4408


@pytest.fixture
def events() -> MemoryEvents:
    """Make a stream."""
    return MemoryEvents(epoch="e1")


@pytest.fixture
async def server(events: MemoryEvents) -> AsyncIterator[StreamServer]:
    """Serve it."""
    async with stream_server(events) as face:
        yield face


@asynccontextmanager
async def connect_stuck_client(face: StreamServer) -> AsyncIterator[RawSocket]:
    """Connect a client that subscribes and then reads nothing."""
    async with raw_socket(face.url, KEY, limit=2048) as client:
        client.send_frame({"type": "subscribe", "conversation": "cnv_a", "after": 0})
        yield client


async def read_to_the_end(client: RawSocket) -> tuple[list[int], int, str]:
    """Read everything there is: the seqs, and the close code with its reason."""
    seqs: list[int] = []
    while True:
        opcode, body = await client.receive()
        if opcode == CLOSE:
            return seqs, struct.unpack("!H", body[:2])[0], body[2:].decode()
        if opcode == TEXT:
            frame = json.loads(body)
            seqs += [frame["seq"]] if "v" in frame else []


async def read_all(session: aiohttp.ClientSession, subscribed: asyncio.Event) -> list[int]:
    """Read as a healthy client does, and return the numbers of the events."""
    async with session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": "cnv_a", "after": 0})
        numbers: list[int] = []
        while numbers[-1:] != [EVENTS]:
            frame = await socket.receive_json(timeout=60)
            numbers += [frame["n"]] if "n" in frame else []
            subscribed.set()
        return numbers


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    while not condition():  # noqa: ASYNC110 - the sockets' own state, without a notification
        await asyncio.sleep(0.05)


async def write_all(events: MemoryEvents) -> None:
    """Append everything, giving the readers a turn after each event."""
    seq = 0
    for n in range(1, EVENTS + 1):
        event = Event.now(EventType.JOB_STARTED, "cnv_a", {"padding": PADDING}).numbered(n)
        seq = await events.append(event, expected=seq, account="acc_1")
        await asyncio.sleep(0)


async def test_slow_readers_are_cut_and_affect_no_others(server: StreamServer, events: MemoryEvents) -> None:
    """Healthy readers get everything, memory stays bounded, and the slow ones are gone at the end."""
    async with AsyncExitStack() as stack:
        for _ in range(SLOW):
            await stack.enter_async_context(connect_stuck_client(server))
        session = await stack.enter_async_context(server.http())
        ready = [asyncio.Event() for _ in range(HEALTHY)]
        reading = [asyncio.create_task(read_all(session, event)) for event in ready]
        await asyncio.gather(*(event.wait() for event in ready))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await write_all(events)
        for numbers in await asyncio.gather(*reading):
            assert numbers == list(range(1, EVENTS + 1))
        async with asyncio.timeout(30):
            await until(lambda: server.readers.count == 0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        # 40 queues of 1 MiB, their socket buffers, and the 6 MB of the stream itself.
        assert grown < 100 * 1024


async def test_a_slow_reader_learns_where_to_come_back(server: StreamServer, events: MemoryEvents) -> None:
    """A client that reads on after it was closed finds 4408 and the seq of the last event before it."""
    await write_all(events)
    async with connect_stuck_client(server) as client:
        async with asyncio.timeout(30):
            await until(lambda: TOO_SLOW in server.readers.close_codes())
            seqs, code, reason = await read_to_the_end(client)
    assert code == TOO_SLOW
    assert seqs == list(range(1, len(seqs) + 1))
    assert int(reason.rpartition(" ")[2]) == seqs[-1] < EVENTS
