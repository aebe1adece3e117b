"""Measure a cold start to the first reply, memory at rest, and the stop, of the gateway with its nats-server.

    python -m bench.cold_start [--rounds 5] [--rest 3]

`first` starts on an empty directory, `again` on the one it left. The message waits on Telegram before the
start, so the reply comes as soon as the gateway can. The raw limit is Python importing aiohttp, nats and
SQLAlchemy and a nats-server opening its port, one after the other. The model is measured beside.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import meters
from bench.gateway_setup import env_variables, run_model, settings_for
from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess
from nats_servers import NatsServer

IMPORTS = "import aiohttp, aiohttp.web, nats, sqlalchemy.ext.asyncio"
CHAT = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRow:
    """One start: seconds to the first reply, CPU seconds until then, megabytes at rest, seconds to exit."""

    reply: float
    cpu: float
    megabytes: float
    end: float


async def start(platform: Simulator, directory: Path, env: dict[str, str], rest: float) -> StartRow:
    """Start a gateway for which a message waits, let it rest, and stop it with SIGTERM."""
    process = GatewayProcess(directory, env=env)
    answered = len(platform.messages(CHAT))
    await platform.say(CHAT, "hello")
    begun = time.perf_counter()
    await process.start(wait=False)
    try:
        await platform.wait_for_messages(answered + 1, chat=CHAT, seconds=60)
        reply, cpu = time.perf_counter() - begun, meters.read(process.pid).cpu
        await process.until_ready()
        await asyncio.sleep(rest)
        megabytes = meters.read(process.pid).megabytes
        begun = time.perf_counter()
        await process.kill(signal.SIGTERM)
        return StartRow(reply=reply, cpu=cpu, megabytes=megabytes, end=time.perf_counter() - begun)
    finally:
        await process.stop()


async def measure_baseline(directory: Path) -> float:
    """Return the seconds that the imports and the nats-server take."""
    begun = time.perf_counter()
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", IMPORTS)
    await child.wait()
    server = NatsServer(directory)
    await server.start()
    taken = time.perf_counter() - begun
    await server.stop()
    return taken


async def run(given: Any) -> dict[str, list[StartRow]]:
    """Measure every kind of start."""
    rows: dict[str, list[StartRow]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with simulate() as platform, run_model() as url:
            plain = settings_for(platform)
            with_model = plain | env_variables("AGENT", {"model": "openai:loopback", "base_url": url})
            with_model["OPENAI_API_KEY"] = "a key for a loopback model"
            for number in range(given.rounds):
                for kind, env in (("builtin:shell", plain), ("a model", with_model)):
                    place = directory / f"{kind}-{number}"
                    for which in ("first", "again"):
                        row = await start(platform, place, env, given.rest)
                        rows.setdefault(f"{kind}, {which}", []).append(row)
                limit = await measure_baseline(directory / f"raw{number}")
                rows.setdefault("raw limit", []).append(
                    StartRow(reply=limit, cpu=0.0, megabytes=0.0, end=0.0)
                )
    return rows


def print_rows(rows: dict[str, list[StartRow]]) -> None:
    """Print the medians beside the raw limit."""
    limit = median(row.reply for row in rows["raw limit"])

    def middle(name: str, of: Callable[[StartRow], float]) -> float:
        return median(of(row) for row in rows[name])

    meters.print_table(
        ["start with Telegram", "first reply s", "× raw", "CPU s until then", "MB at rest", "end s"],
        [
            [
                name,
                middle(name, lambda row: row.reply),
                middle(name, lambda row: row.reply) / limit,
                middle(name, lambda row: row.cpu),
                middle(name, lambda row: row.megabytes),
                middle(name, lambda row: row.end),
            ]
            for name in rows
        ],
    )


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rest", type=float, default=2.0)
    print_rows(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
