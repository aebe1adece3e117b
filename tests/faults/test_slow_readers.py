"""G7: clients that do not read are cut with a code to come back with; nobody else notices (scaled)."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from delivery.event import Event, Kind
from delivery.streams.memory import MemoryStream
from stream_face import KEY, StreamFace, stream_face

SLOW = 40
HEALTHY = 5
EVENTS = 1500
PADDING = "x" * 4096
TOO_SLOW = 4408


@pytest.fixture
def events() -> MemoryStream:
    """Make a stream."""
    return MemoryStream(epoch="e1")


@pytest.fixture
async def face(events: MemoryStream) -> AsyncIterator[StreamFace]:
    """Serve it."""
    async with stream_face(events) as face:
        yield face


class Stuck:
    """A client that upgrades, subscribes, and then reads nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, frame: object) -> None:
        """Send a text frame, masked as clients must."""
        body = json.dumps(frame).encode()
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(body))
        self.writer.write(struct.pack("!BB", 0x81, 0x80 | len(body)) + mask + masked)

    async def read_to_the_end(self) -> tuple[list[int], int, str]:
        """Read everything there is: the seqs, and the close code with its reason."""
        seqs: list[int] = []
        while True:
            head = await self.reader.readexactly(2)
            size = head[1] & 0x7F
            if size == 126:
                size = struct.unpack("!H", await self.reader.readexactly(2))[0]
            body = await self.reader.readexactly(size)
            if head[0] & 0x0F == 8:
                return seqs, struct.unpack("!H", body[:2])[0], body[2:].decode()
            if head[0] & 0x0F == 1:
                frame = json.loads(body)
                seqs += [frame["seq"]] if "v" in frame else []


@asynccontextmanager
async def stuck(face: StreamFace) -> AsyncIterator[Stuck]:
    """Connect a client that does not read."""
    host, port = face.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2048)
    request = (
        f"GET /ws HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {KEY}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    writer.write(request.encode())
    await reader.readuntil(b"\r\n\r\n")
    client = Stuck(reader, writer)
    client.say({"type": "subscribe", "conversation": "cnv_a", "after": 0})
    try:
        yield client
    finally:
        writer.transport.abort()


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
    while not condition():  # noqa: ASYNC110 - the sockets' own state, which nobody announces
        await asyncio.sleep(0.05)


async def write_all(events: MemoryStream) -> None:
    """Append everything, giving the readers a turn after each event."""
    seq = 0
    for n in range(1, EVENTS + 1):
        event = Event.now(Kind.JOB_STARTED, "cnv_a", {"padding": PADDING}).numbered(n)
        seq = await events.append(event, expected=seq)
        await asyncio.sleep(0)


async def test_slow_readers_are_cut_and_harm_nobody(face: StreamFace, events: MemoryStream) -> None:
    """Healthy readers get everything, memory stays bounded, and the slow ones are gone at the end."""
    async with AsyncExitStack() as stack:
        for _ in range(SLOW):
            await stack.enter_async_context(stuck(face))
        session = await stack.enter_async_context(face.http())
        ready = [asyncio.Event() for _ in range(HEALTHY)]
        reading = [asyncio.create_task(read_all(session, event)) for event in ready]
        await asyncio.gather(*(event.wait() for event in ready))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await write_all(events)
        for numbers in await asyncio.gather(*reading):
            assert numbers == list(range(1, EVENTS + 1))
        async with asyncio.timeout(30):
            await until(lambda: face.readers.count == 0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        # 40 queues of 1 MiB, their socket buffers, and the 6 MB of the stream itself.
        assert grown < 100 * 1024


async def test_a_slow_reader_learns_where_to_come_back(face: StreamFace, events: MemoryStream) -> None:
    """Who reads on after being given up finds 4408 and the seq of the last event before it."""
    await write_all(events)
    async with stuck(face) as client:
        async with asyncio.timeout(30):
            await until(lambda: TOO_SLOW in face.readers.codes())
            seqs, code, reason = await client.read_to_the_end()
    assert code == TOO_SLOW
    assert seqs == list(range(1, len(seqs) + 1))
    assert int(reason.rpartition(" ")[2]) == seqs[-1] < EVENTS
