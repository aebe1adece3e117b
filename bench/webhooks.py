"""Compare webhook deliveries a second with a bare aiohttp POST of the same bytes, in the same run.

    python -m bench.webhooks [--count 4000] [--at-once 64] [--rounds 3]

The receiver is a process of its own on loopback. The sink signs, checks the address and evaluates the answer;
the raw side only posts. The receiver counts requests by webhook-id: none may be lost or doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median

import aiohttp
from aiohttp import web

from delivery.deliveries.port import Delivery, OutcomeKind
from delivery.webhooks.egress import Egress
from delivery.webhooks.signing import new_secret
from delivery.webhooks.sink import WebhookSink, WebhookTarget
from egress.policy import EgressPolicy

PER_ENDPOINT = 20
"""Requests to one endpoint that a gateway has in progress at once."""

BODY = b'{"v":1,"id":"evt_0","type":"agent.finished","data":{"output":"' + b"x" * 400 + b'"}}'


def receive(control: Connection) -> None:
    """Answer 200 to everything until told to stop; report how many requests and different ids arrived."""
    asyncio.run(_receive(control))


async def _receive(control: Connection) -> None:
    ids: list[str] = []

    async def take(request: web.Request) -> web.Response:
        await request.read()
        ids.append(request.headers.get("webhook-id", ""))
        return web.Response()

    application = web.Application()
    application.router.add_post("/hook", take)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    control.send(runner.addresses[0][1])
    loop = asyncio.get_running_loop()
    while (asked := await loop.run_in_executor(None, control.recv)) in {"count", "look"}:
        control.send((len(ids), len(set(ids))))
        if asked == "count":
            ids.clear()
    await runner.cleanup()


def received(control: Connection) -> int:
    """Return how many requests have arrived since the last count."""
    control.send("look")
    requests, _ = control.recv()
    return int(requests)


@asynccontextmanager
async def receiver() -> AsyncIterator[tuple[int, Connection]]:
    """Run the receiver; yield its port and the connection that controls it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=receive, args=(theirs,), daemon=True)
    process.start()
    try:
        yield await asyncio.to_thread(ours.recv), ours
    finally:
        ours.send("stop")
        await asyncio.to_thread(process.join, 10)


async def measure(send: Callable[[int], Awaitable[None]], *, count: int, at_once: int) -> float:
    """Return how many calls a second `send` makes, `at_once` at a time."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await send(number)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    return count / (time.perf_counter() - start)


async def compare(count: int, at_once: int, rounds: int) -> None:
    """Measure both sides in turn and print the table."""
    async with receiver() as (port, door):
        url = f"http://127.0.0.1:{port}/hook"
        raw, sink = [], []
        lost = doubled = 0
        for _ in range(rounds):
            raw.append(await measure_aiohttp(url, count, at_once))
            door.send("count")
            door.recv()
            sink.append(await _measure_sink(url, count, at_once))
            door.send("count")
            requests, different = door.recv()
            lost += count - different
            doubled += requests - different
    print(f"| webhooks, {at_once} at once, {count} a round, median of {rounds} | per second |")
    print("|---|---|")
    print(f"| raw aiohttp POST (the limit) | {median(raw):,.0f} |")
    print(f"| WebhookSink (guarded, signed, judged) | {median(sink):,.0f} |")
    print(f"| ratio | {median(sink) / median(raw):.2f} |")
    print(f"| lost / doubled | {lost} / {doubled} |")


async def measure_aiohttp(url: str, count: int, at_once: int) -> float:
    """Return how many POSTs a second plain aiohttp makes."""
    connector = aiohttp.TCPConnector(limit=512)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(_number: int) -> None:
            async with session.post(url, data=BODY) as response:
                await response.read()

        await measure(send, count=min(count, 200), at_once=at_once)
        return await measure(send, count=count, at_once=at_once)


async def _measure_sink(url: str, count: int, at_once: int) -> float:
    known = WebhookTarget(url=url, secrets=(new_secret(),))

    async def lookup(_endpoint: str) -> WebhookTarget:
        return known

    async with Egress(EgressPolicy.parse("127.0.0.0/8")) as egress:
        sink = WebhookSink(egress=egress, find_target=lookup)

        async def send(number: int) -> None:
            assert (await sink.send(_delivery(number))).kind is OutcomeKind.DELIVERED

        return await measure(send, count=count, at_once=at_once)


def _delivery(number: int) -> Delivery:
    return Delivery(
        id=f"dlv_{number}",
        account="acc_1",
        event_id=f"evt_{number}",
        event_type="agent.finished",
        event_time=datetime.now(UTC),
        conversation="cnv_1",
        kind="webhook",
        target="whk_1",
        part=0,
        body=BODY,
        attempt=1,
    )


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    asyncio.run(compare(given.count, given.at_once, given.rounds))


if __name__ == "__main__":
    main()
