"""Measure what a message costs in a database with many finished turns, beside a database with few."""

from __future__ import annotations

import asyncio
import tempfile
from argparse import Namespace
from pathlib import Path

from bench import latency
from bench.copied_turns import CHAT, copy_turns
from bench.gateway_setup import open_bench_gateway, run_model
from bench.latency import LatencyRow
from bench.targets.report import TargetRow


async def measure_rows(count: int, rows: int) -> list[TargetRow]:
    """Compare messages over WebSocket before and after so many turns were added to the database."""
    given = Namespace(count=count, pause=0.02)
    async with run_model() as model:
        with tempfile.TemporaryDirectory() as directory:
            async with open_bench_gateway(Path(directory), model=model) as deployment:
                await deployment.platform.say(CHAT, "hello")
                await deployment.platform.wait_for_messages(1, chat=CHAT)
            few = await _measure(Path(directory), model, "few turns", given)
            turns = await asyncio.to_thread(copy_turns, Path(directory, "data", "dovecote.db"), rows)
            many = await _measure(Path(directory), model, "many turns", given)
    words = f"with {turns:,} turns in the database ÷ with few"
    return [
        TargetRow(name=f"CPU of a message {words}", value=many.cpu / few.cpu, target=1.2),
        TargetRow(name=f"message → reply p50 {words}", value=many.p50 / few.p50, target=1.2),
        TargetRow(name=f"lost or doubled {words}", value=many.lost + many.doubled, target=0),
    ]


async def _measure(directory: Path, model: str, text: str, given: Namespace) -> LatencyRow:
    async with (
        open_bench_gateway(directory, model=model) as deployment,
        latency.on_socket(deployment, text) as (ask, answers),
    ):
        return await latency.measure("gateway", deployment.gateway.pid, ask, answers, given)
