"""Measure how long a reply takes and what it costs, over Telegram and WebSocket, beside the raw limit.

    python -m bench.latency [--count 100] [--pause 0.05]

One message at a time, agents that answer at once. The raw limit (`bench.baseline`) answers the same platform
in the same run. A reply is lost if it does not arrive within 10 seconds, and doubled if it arrives again.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench import meters
from bench.gateway_setup import BenchGateway, open_bench_gateway, run_baseline, run_model
from channels.telegram.simulator import Simulator, simulate

TIMEOUT_SECONDS = 10.0
WARM_UP = 5
CHATS = 25
"""Chats in turn. After five messages in quick succession a bot sends one a second to a chat of Telegram."""

Ask = Callable[[int], Awaitable[None]]
"""Say message number N and return when its reply is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow:
    """The result of one interface, in milliseconds."""

    name: str
    p50: float
    p99: float
    cpu: float
    cpu_of_ended: float
    """The part of `cpu` that processes used which have ended: commands in sandboxes."""
    lost: int
    doubled: int


async def measure(name: str, pid: int, ask: Ask, answers: Callable[[], int], given: Any) -> LatencyRow:
    """Talk one message at a time; `answers` counts the replies so far."""
    for number in range(WARM_UP):
        await ask(number)
    before, replies, taken, lost = meters.read(pid), answers(), [], 0
    for number in range(WARM_UP, WARM_UP + given.count):
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await ask(number)
        except TimeoutError:
            lost += 1
            continue
        taken.append((time.perf_counter() - begun) * 1000)
        await asyncio.sleep(given.pause)
    after = meters.read(pid)
    return LatencyRow(
        name=name,
        p50=meters.percentile(taken, 50),
        p99=meters.percentile(taken, 99),
        cpu=(after.cpu - before.cpu) * 1000 / given.count,
        cpu_of_ended=(after.ended - before.ended) * 1000 / given.count,
        lost=lost,
        doubled=max(0, answers() - replies - given.count + lost),
    )


def on_telegram(platform: Simulator, text: str) -> tuple[Ask, Callable[[], int]]:
    """Return how to ask on Telegram, in many chats in turn, and how to count the answers."""
    said: dict[int, int] = {}

    async def ask(number: int) -> None:
        chat = 1000 + number % CHATS
        said[chat] = said.get(chat, 0) + 1
        await platform.say(chat, text)
        await platform.wait_for_messages(said[chat], chat=chat)

    return ask, lambda: len(platform.messages())


@asynccontextmanager
async def on_socket(setup: BenchGateway, text: str) -> AsyncIterator[tuple[Ask, Callable[[], int]]]:
    """Return how to ask on the gateway's WebSocket, and how to count the answers."""
    received: asyncio.Queue[str] = asyncio.Queue()
    count = [0]
    async with setup.gateway.http() as session, session.ws_connect("/ws") as socket:

        async def listen() -> None:
            async for frame in socket:
                event = frame.json()
                if event["type"] == "message.completed":
                    count[0] += 1
                    received.put_nowait(event["turn"])

        async def ask(number: int) -> None:
            await socket.send_json({"type": "send", "conversation": name, "text": text, "id": f"m{number}"})
            await received.get()

        name = f"bench-{text}"
        listening = asyncio.create_task(listen())
        await socket.send_json({"type": "send", "conversation": name, "text": text, "id": "first"})
        conversation = await _conversation(setup, name)
        await socket.send_json({"type": "subscribe", "conversation": conversation, "after": 0})
        await received.get()
        try:
            yield ask, lambda: count[0]
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening


async def _conversation(deployment: BenchGateway, name: str) -> str:
    async with deployment.gateway.http() as session:
        while True:
            async with session.get("/conversations") as answer:
                items = (await answer.json())["items"]
            for item in items:
                if item.get("name") == name:
                    return str(item["id"])


@asynccontextmanager
async def on_raw_socket(url: str) -> AsyncIterator[tuple[Ask, Callable[[], int]]]:
    """Return how to ask on the raw limit's WebSocket."""
    async with aiohttp.ClientSession(url) as session, session.ws_connect("/ws") as socket:
        count = [0]

        async def ask(_number: int) -> None:
            await socket.send_str("hello")
            await socket.receive()
            count[0] += 1

        yield ask, lambda: count[0]


async def run(given: Any) -> list[LatencyRow]:
    """Measure every way."""
    rows: list[LatencyRow] = []
    async with simulate() as platform, run_baseline(platform) as limit:
        rows.append(await measure("Telegram, raw limit", limit.pid, *on_telegram(platform, "hello"), given))
    for name, text in (("plain text", "hello"), ("!true", "!true")):
        rows += await _measure_all(f"builtin:shell, {name}", text, None, given)
    async with run_model() as url:
        rows += await _measure_all("model", "hello", url, given)
    async with run_baseline(None) as limit, on_raw_socket(limit.url) as way:
        rows.append(await measure("WebSocket, raw limit", limit.pid, *way, given))
    return rows


async def _measure_all(name: str, text: str, model_url: str | None, given: Any) -> list[LatencyRow]:
    with tempfile.TemporaryDirectory() as directory:
        async with open_bench_gateway(Path(directory), model=model_url) as deployment:
            pid = deployment.gateway.pid
            ways = on_telegram(deployment.platform, text)
            first = await measure(f"Telegram, {name}", pid, *ways, given)
            async with on_socket(deployment, text) as way:
                return [first, await measure(f"WebSocket, {name}", pid, *way, given)]


def print_rows(rows: list[LatencyRow]) -> None:
    """Print each way beside the raw limit of its platform."""
    limits = {row.name.split(",")[0]: row for row in rows if "raw" in row.name}
    meters.print_table(
        ["message → reply", "p50 ms", "p99 ms", "× raw", "CPU ms a message", "× raw", "lost", "doubled"],
        [
            [
                row.name,
                row.p50,
                row.p99,
                row.p50 / limits[row.name.split(",")[0]].p50,
                row.cpu,
                row.cpu / max(0.01, limits[row.name.split(",")[0]].cpu),
                row.lost,
                row.doubled,
            ]
            for row in sorted(rows, key=lambda row: (row.name.split(",")[0], "raw" not in row.name))
        ],
    )


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.05)
    print_rows(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
