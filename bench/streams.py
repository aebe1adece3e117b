"""Compare the stream with bare nats-py: appends, replays over WebSocket, and fan-out, in the same run.

    python -m bench.streams [--events 10000] [--readers 200] [--rounds 3]

The nats-server has file storage. Appends await their confirmation one by one, as the relay does. The raw side
of a replay reads the same events by one batched direct get and does nothing with them. The events are
counted: none may be lost, doubled or reordered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import aiohttp
import nats

from delivery.broker import jetstream_events
from delivery.broker.connection import connect
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.stream_config import StreamConfig, ensure_streams, lasting_subject
from delivery.events.event import Event, EventType
from nats_servers import NatsServer, nats_server
from stream_server import StreamServer, stream_server

CONVERSATION = "cnv_bench"
LIVE = 300
"""Events that are fanned out."""


def event(n: int) -> Event:
    """Return an event of ordinary size."""
    return Event.now(EventType.JOB_STARTED, CONVERSATION, {"text": "x" * 200}).numbered(n)


async def append_events(events: JetStreamEvents, count: int) -> float:
    """Append so many events; returns how many a second."""
    tail = await events.tail(CONVERSATION, account="acc")
    seq, n = (tail.seq, tail.n) if tail else (0, 0)
    start = time.perf_counter()
    for number in range(n + 1, n + count + 1):
        seq = await events.append(event(number), expected=seq, account="acc")
    return count / (time.perf_counter() - start)


async def append_directly(server: NatsServer, count: int) -> float:
    """Publish as many with bare nats-py, awaiting each confirmation."""
    client = await nats.connect(server.url, token=server.token)
    stream, body = client.jetstream(), event(1).encode()
    start = time.perf_counter()
    for _ in range(count):
        await stream.publish("ev.0.raw.raw.e", body)
    rate = count / (time.perf_counter() - start)
    await client.close()
    return rate


async def replay_events(session: aiohttp.ClientSession, after: int, expected: int, *, batch: bool) -> float:
    """Subscribe from a position and read to the live edge; returns the milliseconds from connecting on."""
    start, seqs = time.perf_counter(), list[int]()
    async with session.ws_connect("/ws", max_msg_size=0) as socket:
        frame = {"type": "subscribe", "conversation": CONVERSATION, "after": after, "batch": batch}
        await socket.send_json(frame)
        while True:
            got = json.loads((await socket.receive()).data)
            if got["type"] == "caught_up":
                break
            seqs += [item["seq"] for item in got.get("items", [got]) if "v" in item]
    taken = (time.perf_counter() - start) * 1000
    assert len(seqs) == expected, f"{expected - len(seqs)} events lost"
    assert seqs == sorted(set(seqs)), "events doubled or out of order"
    return taken


async def replay_directly(server: NatsServer, after: int, count: int) -> float:
    """Read the same events by one direct get with bare nats-py; returns milliseconds."""
    client = await nats.connect(server.url, token=server.token)
    inbox = client.new_inbox()
    messages = await client.subscribe(inbox)
    request = {"seq": after + 1, "batch": count, "next_by_subj": lasting_subject("acc", CONVERSATION)}
    start = time.perf_counter()
    await client.publish("$JS.API.DIRECT.GET.EVENTS", json.dumps(request).encode(), reply=inbox)
    for _ in range(count):
        await messages.next_msg(timeout=30)
    taken = (time.perf_counter() - start) * 1000
    await client.close()
    return taken


async def fan_out(stream_api: StreamServer, events: JetStreamEvents, readers: int) -> float:
    """Append while many read; returns how many events a second reached readers."""
    async with stream_api.http() as session:
        ready = [asyncio.Event() for _ in range(readers)]
        async with asyncio.TaskGroup() as group:
            for event_ in ready:
                group.create_task(_read_live(session, event_))
            await asyncio.gather(*(event_.wait() for event_ in ready))
            start = time.perf_counter()
            await append_events(events, LIVE)
        return readers * LIVE / (time.perf_counter() - start)


async def _read_live(session: aiohttp.ClientSession, ready: asyncio.Event) -> None:
    async with session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": CONVERSATION})
        count = 0
        while count < LIVE:
            got = json.loads((await socket.receive()).data)
            count += "v" in got
            if got["type"] == "caught_up":
                ready.set()


async def best_of(rounds: int, measure: Callable[[], Awaitable[float]]) -> float:
    """Return the median of several measurements."""
    return median([await measure() for _ in range(rounds)])


def row(name: str, ours: float, limit: float, unit: str, *, less: bool = False) -> None:
    """Print a line of the table: ours, the raw limit, and how near we come to it."""
    ratio = limit / ours if less else ours / limit
    print(f"| {name} | {ours:,.1f} {unit} | {limit:,.1f} {unit} | {ratio:.2f} |")


async def compare(count: int, readers: int, rounds: int) -> None:
    """Measure everything and print the table."""
    with tempfile.TemporaryDirectory() as directory:
        async with (
            nats_server(Path(directory)) as server,
            connect(server.url, token=server.token) as nats_connection,
        ):
            await ensure_streams(nats_connection, StreamConfig(max_bytes=1_000_000_000))
            async with (
                jetstream_events.open_events(nats_connection, epoch="bench") as events,
                stream_server(events) as face,
            ):
                print("| stream | ours | bare nats-py | ratio |\n|---|---|---|---|")
                raw = await append_directly(server, count // 4)
                row("append, confirmed one by one", await append_events(events, count), raw, "/s")
                await _compare_replays(face, server, events, count, rounds)
                fanned = await best_of(rounds, lambda: fan_out(face, events, readers))
                print(f"| fan-out to {readers} WebSockets | {fanned:,.0f} events/s | | |")


async def _compare_replays(
    stream_api: StreamServer, server: NatsServer, events: JetStreamEvents, count: int, rounds: int
) -> None:
    seqs = [item.seq for item in await events.read(CONVERSATION, after=0, limit=count, account="acc")]
    async with stream_api.http() as session:
        for missed in (100, count):
            after = seqs[-missed - 1] if missed < count else 0

            async def raw(after: int = after, missed: int = missed) -> float:
                return await replay_directly(server, after, missed)

            limit = await best_of(rounds, raw)
            for batch in (False, True):

                async def ours(after: int = after, missed: int = missed, *, batch: bool = batch) -> float:
                    return await replay_events(session, after, missed, batch=batch)

                name = f"reconnect with {missed:,} missed{', in batches' if batch else ''}"
                row(name, await best_of(rounds, ours), limit, "ms", less=True)


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    asyncio.run(compare(given.events, given.readers, given.rounds))


if __name__ == "__main__":
    main()
