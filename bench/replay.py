"""Measure how fast a reader gets what it missed over WebSocket, beside the broker's own read.

    python -m bench.replay [--rounds 5] [--idle 500]

The events are in the stream before the measurement. Time runs from the subscription to `caught_up`, with and
without `batch`. The raw limit is one batched direct get by a bare client in the same run. At the end, idle
connections are measured in kilobytes each. Missing, doubled and reordered events are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import nats
from nats.aio.client import Client

from bench import meters
from delivery.broker import jetstream_events
from delivery.broker.connection import connect
from delivery.broker.stream_config import EVENTS, lasting_subject
from delivery.events.event import Event, EventType
from gateway_process import GatewayProcess, gateway

COUNTS = (100, 10_000)
BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRow:
    """One way of reading so many events: milliseconds, and what was wrong with what came."""

    name: str
    count: int
    milliseconds: float
    wrong: int


def broker_of(process: GatewayProcess) -> str:
    """Return where a gateway's own nats-server listens, with its token."""
    directory = process.data / "nats"
    token = json.loads((directory / "server.conf").read_text())["authorization"]["token"]
    (ports,) = directory.glob("*.ports")
    address = json.loads(ports.read_text())["nats"][0]
    return str(address).replace("://", f"://{token}@")


async def account_of(process: GatewayProcess) -> str:
    """Return the id of the default account, which is part of the subjects of its events."""
    async with process.http() as session, session.get("/accounts/me") as answer:
        return str((await answer.json())["id"])


async def fill(url: str, account: str, conversation: str, count: int) -> None:
    """Put events into a conversation's stream."""
    async with (
        connect(url) as nats_connection,
        jetstream_events.open_events(nats_connection, epoch="bench") as stream,
    ):
        tail = await stream.tail(conversation, account=account)
        seq, n = (tail.seq, tail.n) if tail else (0, 0)
        for number in range(n + 1, count + 1):
            event = Event.now(
                EventType.MESSAGE_COMPLETED, conversation, {"text": "x" * 100, "role": "assistant"}
            )
            seq = await stream.append(event.numbered(number), expected=seq, account=account)


async def conversation_of(process: GatewayProcess, name: str) -> str:
    """Open a conversation by sending a message to it; returns its id."""
    async with process.http() as session:
        said = {"input": "hello", "conversation": name}
        async with session.post("/agents/default/turns", json=said) as answer:
            queued = await answer.json()
        while True:
            async with session.get(queued["statusUrl"]) as answer:
                if (await answer.json())["state"] == "completed":
                    return str(queued["conversationId"])


async def replay(socket: aiohttp.ClientWebSocketResponse, conversation: str, *, batch: bool) -> list[int]:
    """Subscribe from the beginning; returns the numbers of the events until the reader has caught up."""
    await socket.send_json({"type": "subscribe", "conversation": conversation, "after": 0, "batch": batch})
    numbers: list[int] = []
    async for frame in socket:
        shape = json.loads(frame.data)
        if shape["type"] == "caught_up":
            break
        items = shape["items"] if shape["type"] == "events" else [shape]
        numbers += [item["n"] for item in items if "n" in item]
    await socket.send_json({"type": "unsubscribe", "conversation": conversation})
    return numbers


async def read_directly(client: Client, subject: str, count: int) -> int:
    """Read the events of a subject by batched direct get; returns how many came."""
    inbox, got, after = client.new_inbox(), 0, 0
    subscription = await client.subscribe(inbox)
    while got < count:
        request = {"seq": after + 1, "batch": BATCH, "next_by_subj": subject}
        await client.publish(f"$JS.API.DIRECT.GET.{EVENTS}", json.dumps(request).encode(), reply=inbox)
        while True:
            message = await subscription.next_msg(timeout=10)
            headers = message.headers or {}
            if "Status" in headers:
                break
            json.loads(message.data)
            got, after = got + 1, int(headers["Nats-Sequence"])
    await subscription.unsubscribe()
    return got


async def measure(process: GatewayProcess, client: Client, conversation: str, given: Any) -> list[ReplayRow]:
    """Read the conversation in every way, in turn."""
    count = len(await process_events(process, conversation))
    subject = lasting_subject(await account_of(process), conversation)
    taken: dict[str, list[float]] = {"raw limit": [], "batch": [], "one by one": []}
    wrong = dict.fromkeys(taken, 0)
    async with process.http() as session:
        for _ in range(given.rounds):
            begun = time.perf_counter()
            wrong["raw limit"] += abs(await read_directly(client, subject, count) - count)
            taken["raw limit"].append(time.perf_counter() - begun)
            for name, batch in (("batch", True), ("one by one", False)):
                async with session.ws_connect("/ws", max_msg_size=0) as socket:
                    begun = time.perf_counter()
                    numbers = await replay(socket, conversation, batch=batch)
                    taken[name].append(time.perf_counter() - begun)
                    wrong[name] += len(set(enumerate(numbers, 1)) ^ {(n, n) for n in range(1, count + 1)})
    return [
        ReplayRow(name=name, count=count, milliseconds=median(times) * 1000, wrong=wrong[name])
        for name, times in taken.items()
    ]


async def process_events(process: GatewayProcess, conversation: str) -> list[int]:
    """Read a conversation once, unmeasured; returns its numbers."""
    async with process.http() as session, session.ws_connect("/ws", max_msg_size=0) as socket:
        return await replay(socket, conversation, batch=True)


async def idle(process: GatewayProcess, conversation: str, count: int) -> float:
    """Return the kilobytes of one idle, subscribed connection."""
    before = meters.read(process.pid).megabytes
    async with AsyncExitStack() as stack:
        headers, every = {"Authorization": f"Bearer {process.key}"}, aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(process.url, headers=headers, connector=every)
        )
        for _ in range(count):
            socket = await stack.enter_async_context(session.ws_connect("/ws"))
            await socket.send_json({"type": "subscribe", "conversation": conversation})
            await socket.receive()
        return (meters.read(process.pid).megabytes - before) * 1024 / count


async def run(given: Any) -> tuple[list[ReplayRow], float]:
    """Fill the conversations and read them."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        env = {"DOVECOTE_LOG_LEVEL": "error"}
        process = await stack.enter_async_context(gateway(directory / "data", env=env))
        url, account = broker_of(process), await account_of(process)
        client = await nats.connect(url)
        stack.push_async_callback(client.close)
        rows: list[ReplayRow] = []
        for count in COUNTS:
            conversation = await conversation_of(process, f"of {count}")
            await asyncio.sleep(1.0)  # what was said there is relayed
            await fill(url, account, conversation, count)
            rows += await measure(process, client, conversation, given)
        return rows, await idle(process, conversation, given.idle)


def print_rows(rows: list[ReplayRow], kilobytes: float) -> None:
    """Print each way beside the raw limit."""
    limits = {row.count: row.milliseconds for row in rows if row.name == "raw limit"}
    meters.print_table(
        ["missed events", "", "ms", "× raw", "events/s", "lost, doubled or reordered"],
        [
            [
                row.count,
                row.name,
                row.milliseconds,
                row.milliseconds / limits[row.count],
                f"{row.count / row.milliseconds * 1000:,.0f}",
                row.wrong,
            ]
            for row in rows
        ],
    )
    print(f"\nan idle, subscribed WebSocket: {kilobytes:.1f} KB")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=int, default=200)
    print_rows(*asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
