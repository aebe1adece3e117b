"""Measure what is not the path of a message: start, memory, recovery, replay, webhooks, commands."""

from __future__ import annotations

import asyncio
import tempfile
import time
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from bench import cold_start, latency, recovery, replay, webhooks
from bench.gateway_setup import BenchGateway, open_bench_gateway, run_baseline
from bench.replay import ReplayRow
from bench.targets.report import TargetRow

RECOVERY_TARGETS = {20: 3.0, 200: 5.0}
REPLAY_TARGETS = {100: 12.0, 10_000: 500.0}
TURNS_FOR_WEBHOOKS = 120
WEBHOOK_SECONDS = 180.0


async def measure_start(rounds: int) -> list[TargetRow]:
    """Measure the start to the first reply, and the memory at rest."""
    found = await cold_start.run(Namespace(rounds=rounds, rest=2.0))
    raw = median(row.reply for row in found["raw limit"])
    rows: list[TargetRow] = []
    for kind, seconds, megabytes in (("builtin:shell", 1.2, 100), ("a model", 1.6, 115)):
        again = found[f"{kind}, again"]
        reply, memory = median(row.reply for row in again), median(row.megabytes for row in again)
        rows += [
            TargetRow(name=f"start → first reply s, {kind}", value=reply, raw=raw, target=seconds),
            TargetRow(name=f"memory at rest MB, {kind}", value=memory, target=megabytes),
        ]
    return rows


async def measure_recovery() -> list[TargetRow]:
    """Measure kill -9 with 20 and 200 turns in flight, with the embedded nats-server."""
    rows: list[TargetRow] = []
    for chats, target in RECOVERY_TARGETS.items():
        with tempfile.TemporaryDirectory() as directory:
            times, found = await recovery.measure(Path(directory), chats=chats, replicas=1)
        rows += [
            TargetRow(name=f"kill -9, {chats} turns: all answered s", value=times.last, target=target),
            TargetRow(
                name=f"kill -9, {chats} turns: lost or doubled", value=found.lost + found.doubled, target=0
            ),
        ]
    return rows


async def measure_replay(rounds: int) -> list[TargetRow]:
    """Measure what a reader missed, read with `batch`, beside the broker's own read."""
    found, _ = await replay.run(Namespace(rounds=rounds, idle=10))

    def of(name: str, count: int) -> ReplayRow:
        return next(row for row in found if (row.name, row.count) == (name, count))

    return [
        TargetRow(
            name=f"replay of {count} events ms",
            value=of("batch", count).milliseconds,
            raw=of("raw limit", count).milliseconds,
            target=target,
        )
        for count, target in REPLAY_TARGETS.items()
    ]


async def measure_webhooks() -> list[TargetRow]:
    """Measure webhook deliveries a second through the whole product, beside plain aiohttp."""
    env = {"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}
    async with webhooks.receiver() as (port, door):
        url = f"http://127.0.0.1:{port}/hook"
        raw = await webhooks.measure_aiohttp(url, 2000, webhooks.PER_ENDPOINT)
        door.send("count")
        door.recv()
        with tempfile.TemporaryDirectory() as directory:
            async with open_bench_gateway(Path(directory), env=env) as deployment:
                expected, seconds = await _replay_to(deployment, url, door)
        door.send("count")
        requests, different = door.recv()
    return [
        TargetRow(
            name="webhook deliveries/s",
            value=expected / seconds,
            raw=raw,
            target=800,
            more_is_better=True,
        ),
        TargetRow(
            name="webhooks lost or doubled", value=expected - different + requests - different, target=0
        ),
    ]


async def _replay_to(deployment: BenchGateway, url: str, door: Connection) -> tuple[int, float]:
    """Make events by turns, send them all to a new endpoint, and return their number and the seconds."""
    process, platform = deployment.gateway, deployment.platform
    since = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    for chat in range(TURNS_FOR_WEBHOOKS):
        await platform.say(1000 + chat, "hello")
    await platform.wait_for_messages(TURNS_FOR_WEBHOOKS, seconds=WEBHOOK_SECONDS)
    await asyncio.sleep(2.0)  # the last events are relayed
    async with process.http() as session:
        made = {"url": url, "events": ["turn.*", "message.*"]}
        async with session.post("/accounts/me/webhooks", json=made) as answer:
            endpoint = (await answer.json())["id"]
        begun = time.perf_counter()
        async with session.post(f"/webhooks/{endpoint}/replay", json={"after": since}) as answer:
            expected = int((await answer.json())["replayed"])
    async with asyncio.timeout(WEBHOOK_SECONDS):
        while await asyncio.to_thread(webhooks.received, door) < expected:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
    return expected, time.perf_counter() - begun


async def measure_command(count: int) -> list[TargetRow]:
    """Measure the CPU of `!echo` over WebSocket, beyond that of the processes of its sandbox."""
    given = Namespace(count=count, pause=0.02)
    async with run_baseline(None) as limit, latency.on_raw_socket(limit.url) as way:
        raw = await latency.measure("raw limit", limit.pid, *way, given)
    with tempfile.TemporaryDirectory() as directory:
        async with open_bench_gateway(Path(directory)) as deployment:
            pid = deployment.gateway.pid
            async with latency.on_socket(deployment, "!echo hello") as command:
                found = await latency.measure("!echo", pid, *command, given)
    return [
        TargetRow(
            name=f"!echo over WebSocket, CPU ms beyond its sandbox's {found.cpu_of_ended:.1f}",
            value=found.cpu - found.cpu_of_ended,
            raw=raw.cpu,
            target=12,
        )
    ]
