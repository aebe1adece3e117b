"""Measure what a message costs in a database with many finished turns, beside a database with few."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from argparse import Namespace
from pathlib import Path
from statistics import median

from bench import latency
from bench.copied_turns import CHAT, copy_turns
from bench.gateway_setup import open_bench_gateway, run_model
from bench.latency import LatencyRow
from bench.targets.report import TargetRow


async def measure_rows(count: int, rows: int, rounds: int) -> list[TargetRow]:
    """Compare messages over WebSocket in a database, and in its copy to which so many turns were added.

    Each is measured in turn, because the speed of a shared machine changes within a minute.
    """
    given = Namespace(count=count, pause=0.02)
    async with run_model() as model:
        with tempfile.TemporaryDirectory() as directory:
            small, large = Path(directory, "few"), Path(directory, "many")
            await asyncio.to_thread(small.mkdir)
            async with open_bench_gateway(small, model=model) as deployment:
                await deployment.platform.say(CHAT, "hello")
                await deployment.platform.wait_for_messages(1, chat=CHAT)
            await asyncio.to_thread(shutil.copytree, small, large)
            turns = await asyncio.to_thread(copy_turns, large / "data" / "dovecote.db", rows)
            few, many = [], []
            for number in range(rounds):
                few.append(await _measure(small, model, f"few turns, {number}", given))
                many.append(await _measure(large, model, f"many turns, {number}", given))
    words = f"with {turns:,} turns in the database ÷ with few"
    cpu = median(row.cpu for row in many) / median(row.cpu for row in few)
    p50 = median(row.p50 for row in many) / median(row.p50 for row in few)
    return [
        TargetRow(name=f"CPU of a message {words}", value=cpu, target=1.2),
        TargetRow(name=f"message → reply p50 {words}", value=p50, target=1.2),
        TargetRow(name=f"lost or doubled {words}", value=sum(r.lost + r.doubled for r in many), target=0),
    ]


async def _measure(directory: Path, model: str, text: str, given: Namespace) -> LatencyRow:
    async with (
        open_bench_gateway(directory, model=model) as deployment,
        latency.on_socket(deployment, text) as (ask, answers),
    ):
        return await latency.measure("gateway", deployment.gateway.pid, ask, answers, given)
