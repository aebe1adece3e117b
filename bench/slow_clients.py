"""G7, G16: measure the effect of readers that never read and of half-open connections, at full size.

    python -m bench.slow_clients [--stuck 1000] [--healthy 20] [--half-open 500] [--rate 50]

G7: how long healthy readers wait for an event with and without stuck readers, the memory, and how soon the
stuck readers are disconnected. G16: how long a request takes with and without half-open connections, and how
soon those are closed. Clients and gateway run in one process on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from api_server import ApiServer, open_api_server
from bench.meters import resident
from delivery.broker.memory_events import MemoryEvents
from delivery.events.event import Event, EventType
from raw_socket import TEXT, RawSocket
from stream_server import KEY, StreamServer, stream_server

PADDING = "x" * 4096
NARROW_BUFFER = 4096
"""Bytes of the receive buffer of those that do not read: what they are owed stays with us."""

GONE_WITHIN = 60.0
CONNECTIONS_PER_ADDRESS = 50
"""Half-open connections from one address: fewer than what an address may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitTimes:
    """Seconds that things took alone and with the crowd, and after which it was gone; megabytes it cost."""

    alone: list[float]
    loaded: list[float]
    closed_after: float
    memory_growth: float = 0.0

    def p99(self) -> tuple[float, float]:
        """Return the 99th percentiles alone and crowded."""
        return high(self.alone), high(self.loaded)


def high(waits: list[float], share: float = 0.99) -> float:
    """Return the wait that this share of all stays within."""
    return sorted(waits)[min(int(len(waits) * share), len(waits) - 1)]


async def slow_readers(*, stuck: int, healthy: int, events: int) -> WaitTimes:
    """Send a conversation's events to healthy readers alone, then beside readers that read nothing."""
    stream = MemoryEvents(epoch="e1")
    async with stream_server(stream) as face, AsyncExitStack() as stack:
        alone = await _append_and_measure(face, stream, "cnv_alone", healthy=healthy, events=events)
        for _ in range(stuck):
            stack.push_async_callback(_abort, await _connect_stuck_reader(face))
        before = resident(os.getpid())
        crowded = await _append_and_measure(face, stream, "cnv_crowded", healthy=healthy, events=events)
        begun = time.perf_counter()
        grown = resident(os.getpid()) - before
        async with asyncio.timeout(GONE_WITHIN):
            while face.readers.count:  # noqa: ASYNC110 - the sockets' own state, which nobody announces
                await asyncio.sleep(0.05)
        return WaitTimes(
            alone=alone, loaded=crowded, closed_after=time.perf_counter() - begun, memory_growth=grown
        )


async def _append_and_measure(
    server: StreamServer, stream: MemoryEvents, conversation: str, *, healthy: int, events: int
) -> list[float]:
    """Append events at a steady pace; return how long each took to each healthy reader."""
    waits: list[float] = []
    async with server.http() as session, asyncio.TaskGroup() as group:
        ready = [asyncio.Event() for _ in range(healthy)]
        for one in ready:
            group.create_task(_read(session, conversation, events, waits, one))
        for one in ready:
            await one.wait()
        seq = 0
        for n in range(1, events + 1):
            about = {"padding": PADDING, "at": time.perf_counter()}
            event = Event.now(EventType.JOB_STARTED, conversation, about).numbered(n)
            seq = await stream.append(event, expected=seq, account="acc_1")
            await asyncio.sleep(0.005)
    return waits


async def _read(
    session: aiohttp.ClientSession, conversation: str, events: int, waits: list[float], ready: asyncio.Event
) -> None:
    async with session.ws_connect("/ws", max_msg_size=0) as socket:
        await socket.send_json({"type": "subscribe", "conversation": conversation, "after": 0})
        n = 0
        while n < events:
            frame = await socket.receive_json(timeout=GONE_WITHIN)
            ready.set()
            if "n" in frame:
                n = frame["n"]
                waits.append(time.perf_counter() - frame["data"]["at"])


async def _connect_stuck_reader(server: StreamServer) -> RawSocket:
    """Subscribe over a narrow connection that is never read from again."""
    parts = urlsplit(server.url)
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BUFFER)
    connected.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connected, (parts.hostname or "", parts.port or 0))
    reader, writer = await asyncio.open_connection(sock=connected, limit=NARROW_BUFFER)
    lines = (
        "GET /ws HTTP/1.1",
        f"Host: {parts.netloc}",
        f"Authorization: Bearer {KEY}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    made = RawSocket(reader, writer)
    made.frame(TEXT, json.dumps({"type": "subscribe", "conversation": "cnv_crowded", "after": 0}).encode())
    return made


async def _abort(one: RawSocket) -> None:
    one.writer.transport.abort()


async def half_open(*, count: int, rate: float, seconds: float) -> WaitTimes:
    """Ask steadily, first alone, then while many connections stay half open until they are closed."""
    with tempfile.TemporaryDirectory() as directory:
        async with open_api_server(Path(directory)) as face:
            alone = await _request_steadily(face, rate, asyncio.create_task(asyncio.sleep(seconds)))
            crowd = asyncio.create_task(_hold_open(face, count))
            crowded = await _request_steadily(face, rate, crowd)
            return WaitTimes(alone=alone, loaded=crowded, closed_after=await crowd)


async def _request_steadily(server: ApiServer, rate: float, until: asyncio.Task[object]) -> list[float]:
    """Ask on connections of their own at a rate until a task is done; return what each took."""
    waits: list[float] = []
    connector = aiohttp.TCPConnector(force_close=True)
    headers = {"Authorization": f"Bearer {server.mine.key}"}
    async with aiohttp.ClientSession(server.url, connector=connector, headers=headers) as session:

        async def ask() -> None:
            begun = time.perf_counter()
            async with session.get("/accounts/me") as answer:
                assert answer.status == 200, await answer.text()
            waits.append(time.perf_counter() - begun)

        async with asyncio.TaskGroup() as group:
            while not until.done():
                group.create_task(ask())
                await asyncio.sleep(1 / rate)
    return waits


async def _hold_open(server: ApiServer, count: int) -> float:
    """Begin requests of four kinds that never end, from several addresses; return the longest life."""
    beginnings = (
        b"",
        b"GET / HTT",
        b"POST /accounts HTTP/1.1\r\nHost: a\r\n",
        b"POST /accounts/me/agents HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        + f"Authorization: Bearer {server.mine.key}\r\nContent-Length: 100\r\n\r\n{{".encode(),
    )
    lives = []
    for place in range(count):
        address, beginning = (
            f"127.0.0.{2 + place // CONNECTIONS_PER_ADDRESS}",
            beginnings[place % len(beginnings)],
        )
        lives.append(asyncio.create_task(_until_closed(server.port, address, beginning)))
        await asyncio.sleep(0.002)  # a full backlog would forget connections that say nothing
    return max(await asyncio.gather(*lives))


async def _until_closed(port: int, address: str, beginning: bytes) -> float:
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(beginning)
    with suppress(ConnectionError):
        async with asyncio.timeout(GONE_WITHIN):
            await reader.read()
    writer.close()
    return time.perf_counter() - begun


def _line(name: str, waits: WaitTimes, bounds: str) -> str:
    alone, crowded = (1000 * value for value in waits.p99())
    grown = f"{waits.memory_growth:.0f} MB" if waits.memory_growth else ""
    return f"| {name} | {alone:.0f} ms | {crowded:.0f} ms | {grown} | {waits.closed_after:.1f} s | {bounds} |"


async def main(given: argparse.Namespace) -> None:
    """Measure both crowds and print one table."""
    slow = await slow_readers(stuck=given.stuck, healthy=given.healthy, events=given.events)
    open_ = await half_open(count=given.half_open, rate=given.rate, seconds=5.0)
    print("| | p99 alone | p99 crowded | memory | crowd gone after | promised |\n|---|---|---|---|---|---|")
    print(_line(f"G7: {given.stuck} stuck", slow, "p99 50 ms, 64 MB, all gone 10 s after the last event"))
    print(_line(f"G16: {given.half_open} half open", open_, "p99 250 ms, all gone in 12 s"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stuck", type=int, default=1000)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--events", type=int, default=600)
    parser.add_argument("--half-open", type=int, default=500)
    parser.add_argument("--rate", type=float, default=50.0)
    asyncio.run(main(parser.parse_args()))
