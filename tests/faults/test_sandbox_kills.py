"""Killed at every point of a sandbox's life: one sweep later nothing is left over, and no row is stuck."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from databases import postgres
from postgres import PostgresCluster
from sandbox_fault_points import SANDBOX_POINTS

__all__ = ["postgres"]

ROOT = Path(__file__).parents[2]
ROUNDS = 1
"""Kills at each point; `python -m bench.chaos.sandboxes` does ten."""


async def _run(*options: str) -> str:
    """Run the measurement in a process of its own, which forks before it has any thread."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOVECOTE_")}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.chaos.sandboxes", *options),
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed = (await child.communicate())[0].decode()
    assert child.returncode == 0, printed
    return printed


async def test_a_kill_at_any_point_leaves_nothing_over() -> None:
    """After one reaper round and one sweep there is no orphan and no stuck row, and the key works."""
    printed = await _run("--rounds", str(ROUNDS))
    missing = [
        point for point in SANDBOX_POINTS if f"{point}: {ROUNDS} kills, nothing left over" not in printed
    ]
    assert not missing


async def test_twenty_acquires_in_two_processes_make_one_sandbox(postgres: PostgresCluster) -> None:
    """Two processes with pools of their own on one PostgreSQL want one key ten times each, at once."""
    printed = await _run("--rounds", "0", "--database", postgres.create_database())
    assert "20 acquires of one key in two processes made 1 sandbox\n" in printed
