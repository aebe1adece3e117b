"""Measure the path of a message over Telegram with a streaming model: CPU by layer, latency, throughput."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from statistics import median

from bench import latency, meters, throughput
from bench.gateway_setup import BenchGateway, open_bench_gateway, run_baseline, run_model
from bench.latency import LatencyRow
from bench.targets.report import TargetRow
from bench.throughput import ThroughputRow
from channels.telegram.simulator import simulate

SAMPLING = Path(__file__).parent / "sampling"
PIECES = (1, 150)
CPU_TARGETS = {1: 10.0, 150: 20.0}
RATE_TARGETS = {1: 80.0, 150: 50.0}
MODEL_SECONDS = 0.2
SLOWEST_OF = 200
"""The number of chats whose slowest replies have a target."""
GROWTH_SAMPLE = 50
"""Messages whose CPU is read together, and the turns of a short conversation before them."""
_numbers = count()


async def measure_one_by_one(count: int) -> tuple[list[TargetRow], Mapping[str, Mapping[str, float]]]:
    """Measure messages one after the other, with an immediate model; returns rows and CPU by layer."""
    rows: list[TargetRow] = []
    layers: dict[str, Mapping[str, float]] = {}
    given = Namespace(count=count, pause=0.02)
    for pieces in PIECES:
        async with run_model(pieces=pieces) as url:
            async with simulate() as platform, run_baseline(platform, model=url) as limit:
                asked = latency.on_telegram(platform, "hello")
                raw = await latency.measure("raw limit", limit.pid, *asked, given)
            found, by_layer = await _measure_gateway(url, given)
        layers[f"{pieces} pieces" if pieces > 1 else "1 piece"] = by_layer
        rows += _latency_rows(pieces, found, raw)
    return rows, layers


async def _measure_gateway(url: str, given: Namespace) -> tuple[LatencyRow, Mapping[str, float]]:
    """Measure a gateway, and then another one whose CPU is sampled, which costs about a tenth of it."""
    found, _ = await _measure_run(url, given, {})
    with tempfile.TemporaryDirectory() as directory:
        samples = Path(directory) / "layers.json"
        path = os.pathsep.join([str(SAMPLING), os.environ.get("PYTHONPATH", "")])
        _, share = await _measure_run(url, given, {"CPU_LAYERS": str(samples), "PYTHONPATH": path})
        counts: Mapping[str, int] = json.loads(samples.read_text())
    return found, _by_layer(counts, found.cpu, share=share)


async def _measure_run(url: str, given: Namespace, env: Mapping[str, str]) -> tuple[LatencyRow, float]:
    """Measure a gateway with these variables; returns also its own share of the CPU of its processes."""
    with tempfile.TemporaryDirectory() as directory:
        async with open_bench_gateway(Path(directory), model=url, env=env) as deployment:
            pid = deployment.gateway.pid
            await deployment.platform.say(1, "hello")
            await deployment.platform.wait_for_messages(1, chat=1, seconds=throughput.TIMEOUT_SECONDS)
            if env:
                os.kill(pid, signal.SIGUSR2)
            whole, own = meters.read(pid).cpu, meters.alone(pid)
            found = await latency.measure(
                "gateway", pid, *latency.on_telegram(deployment.platform, "hello"), given
            )
            share = (meters.alone(pid) - own) / max(0.01, meters.read(pid).cpu - whole)
    return found, share


def _by_layer(counts: Mapping[str, int], milliseconds: float, *, share: float) -> dict[str, float]:
    """Divide the CPU time of a message by the samples of the process; the rest is its nats-server."""
    total = sum(counts.values()) or 1
    shares = {name: milliseconds * share * number / total for name, number in counts.items()}
    small = {name for name, value in shares.items() if value < milliseconds / 100}
    named = {name: value for name, value in shares.items() if name not in small}
    return named | {"others": sum(shares[name] for name in small)} | {"children": milliseconds * (1 - share)}


def _latency_rows(pieces: int, found: LatencyRow, raw: LatencyRow) -> list[TargetRow]:
    words = f"{pieces} piece{'s' if pieces > 1 else ''}"
    rows = [
        TargetRow(
            name=f"CPU ms a message, {words}", value=found.cpu, raw=raw.cpu, target=CPU_TARGETS[pieces]
        ),
        TargetRow(
            name=f"messages lost or doubled, {words}", value=found.lost + found.doubled, raw=None, target=0
        ),
    ]
    if pieces == 1:
        rows += [
            TargetRow(name="message → reply p50 ms", value=found.p50, raw=raw.p50, target=20),
            TargetRow(name="message → reply p99 ms", value=found.p99, raw=raw.p99, target=50),
        ]
    return rows


async def measure_many_chats(messages: int) -> list[TargetRow]:
    """Measure 50 chats with 1 and 150 pieces, and 200 chats with 1 piece, with a model of 200 ms."""
    rows: list[TargetRow] = []
    for chats, pieces in ((50, 1), (50, 150), (200, 1)):
        raw, found = await _measure_chats(chats, messages, pieces)
        words = f"{chats} chats, {pieces} piece{'s' if pieces > 1 else ''}"
        if chats == SLOWEST_OF:
            rows.append(TargetRow(name=f"p95 s, {words}", value=found.p95, raw=raw.p95, target=3))
        else:
            rows.append(
                TargetRow(
                    name=f"replies/s, {words}",
                    value=found.per_second,
                    raw=raw.per_second,
                    target=RATE_TARGETS[pieces],
                    more_is_better=True,
                )
            )
        wrong = found.lost + found.doubled + found.reordered
        rows.append(TargetRow(name=f"lost, doubled or reordered, {words}", value=wrong, target=0))
    return rows


async def _measure_chats(chats: int, messages: int, pieces: int) -> tuple[ThroughputRow, ThroughputRow]:
    async with run_model(MODEL_SECONDS, pieces=pieces) as url:
        async with simulate() as platform, run_baseline(platform, model=url) as limit:
            raw = await throughput.measure("raw limit", platform, limit.pid, chats, messages)
        with tempfile.TemporaryDirectory() as directory:
            async with open_bench_gateway(Path(directory), model=url) as deployment:
                platform, pid = deployment.platform, deployment.gateway.pid
                await platform.say(1, "hello")
                await platform.wait_for_messages(1, chat=1, seconds=throughput.TIMEOUT_SECONDS)
                return raw, await throughput.measure("gateway", platform, pid, chats, messages)


async def measure_growth(turns: int, rounds: int) -> list[TargetRow]:
    """Compare the CPU of a message in conversations of fifty turns and in one of so many, in turn.

    Over WebSocket, because a bot sends one message a second to a chat of Telegram.
    """
    short, grown = [], []
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        url = await stack.enter_async_context(run_model())
        deployment = await stack.enter_async_context(open_bench_gateway(Path(directory), model=url))
        long, _answers = await stack.enter_async_context(latency.on_socket(deployment, "hello"))
        await _talk(deployment, long, turns - GROWTH_SAMPLE)
        for number in range(rounds):
            async with latency.on_socket(deployment, f"hello {number}") as (ask, _):
                await _talk(deployment, ask, GROWTH_SAMPLE)
                short.append(await _talk(deployment, ask, GROWTH_SAMPLE))
            grown.append(await _talk(deployment, long, GROWTH_SAMPLE))
    return [
        TargetRow(
            name=f"CPU of a message after {turns} turns ÷ after {GROWTH_SAMPLE}",
            value=median(grown) / median(short),
            target=1.2,
        )
    ]


async def _talk(deployment: BenchGateway, ask: latency.Ask, messages: int) -> float:
    """Say so many messages; returns the CPU of each in milliseconds."""
    before = meters.read(deployment.gateway.pid).cpu
    for _ in range(messages):
        await ask(next(_numbers))
    return (meters.read(deployment.gateway.pid).cpu - before) * 1000 / messages
