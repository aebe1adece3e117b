"""Measure how many replies a second many chats get with a slow model, over Telegram, beside the raw limit.

    python -m bench.throughput [--chats 50 200] [--messages 5] [--delay 0.2]

Each user sends the next message when the last one is answered, so the ideal is chats / delay. The raw limit
(`bench.baseline`) serves the same users in the same run. Lost, doubled and reordered answers are counted (an
answer is reordered if it belongs to another message than the one before it in its chat).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import meters
from bench.gateway_setup import open_bench_gateway, run_baseline, run_model
from channels.telegram.simulator import Simulator, simulate

TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRow:
    """What one run came to."""

    name: str
    chats: int
    per_second: float
    p50: float
    p95: float
    cpu: float
    lost: int
    doubled: int
    reordered: int


async def measure(name: str, platform: Simulator, pid: int, chats: int, messages: int) -> ThroughputRow:
    """Send messages in so many chats; the first message of each chat, which opens it, counts as well."""
    taken: list[float] = []

    async def talk(chat: int) -> None:
        for number in range(1, messages + 1):
            begun = time.perf_counter()
            await platform.say(chat, f"word {number} in {chat}")
            try:
                await platform.wait_for_messages(number, chat=chat, seconds=TIMEOUT_SECONDS)
            except TimeoutError:
                return
            taken.append(time.perf_counter() - begun)

    before, begun = meters.read(pid), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for place in range(chats):
            group.create_task(talk(100_000 + place))
    seconds = time.perf_counter() - begun
    said = [[post.text for post in platform.messages(100_000 + place)] for place in range(chats)]
    return ThroughputRow(
        name=name,
        chats=chats,
        per_second=len(taken) / seconds,
        p50=meters.percentile(taken, 50),
        p95=meters.percentile(taken, 95),
        cpu=(meters.read(pid).cpu - before.cpu) * 1000 / max(1, len(taken)),
        lost=chats * messages - sum(len(set(texts)) for texts in said),
        doubled=sum(len(texts) - len(set(texts)) for texts in said),
        reordered=sum(
            f"word {number} " not in text
            for texts in said
            for number, text in enumerate(dict.fromkeys(texts), start=1)
        ),
    )


async def run(given: Any) -> list[ThroughputRow]:
    """Measure the raw limit and the gateway with each number of chats."""
    rows: list[ThroughputRow] = []
    for chats in given.chats:
        async with simulate() as platform, run_baseline(platform, delay=given.delay) as limit:
            rows.append(await measure("raw limit", platform, limit.pid, chats, given.messages))
        with tempfile.TemporaryDirectory() as directory:
            async with (
                run_model(given.delay) as url,
                open_bench_gateway(Path(directory), model=url) as deployment,
            ):
                # The first turn imports the model's libraries; that is the start's price, not a message's.
                await deployment.platform.say(1, "hello")
                await deployment.platform.wait_for_messages(1, chat=1, seconds=TIMEOUT_SECONDS)
                pid = deployment.gateway.pid
                rows.append(await measure("gateway", deployment.platform, pid, chats, given.messages))
    return rows


def print_rows(rows: list[ThroughputRow], delay: float) -> None:
    """Print the gateway beside the raw limit and the ideal."""
    limits = {row.chats: row for row in rows if row.name == "raw limit"}
    meters.print_table(
        [
            *("chats", "", "replies/s", "÷ ideal", "÷ raw", "p50 s", "p95 s", "CPU ms a reply"),
            *("lost", "doubled", "reordered"),
        ],
        [
            [
                row.chats,
                row.name,
                row.per_second,
                row.per_second * delay / row.chats,
                row.per_second / limits[row.chats].per_second,
                row.p50,
                row.p95,
                row.cpu,
                row.lost,
                row.doubled,
                row.reordered,
            ]
            for row in rows
        ],
    )


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chats", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--messages", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.2)
    given = parser.parse_args()
    print_rows(asyncio.run(run(given)), given.delay)


if __name__ == "__main__":
    main()
