"""Take the snapshots again that the snapshot store did not accept at the end of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from delivery.background import log_errors
from sandbox.errors import SandboxBusy
from sandbox.lifecycle.pool import Pool

INTERVAL_SECONDS = 5.0
"""Seconds between two looks for sandboxes that are due again."""


class SnapshotRetries:
    """Saves the sandboxes of this process that could not be saved, one after the other."""

    def __init__(self, pools: Sequence[Pool], *, interval: float = INTERVAL_SECONDS) -> None:
        self._pools = pools
        self._interval = interval

    async def run(self, stop: asyncio.Event) -> None:
        """Try again until stopped; a stop cancels the snapshot that is being taken."""
        tasks = [asyncio.create_task(self._run_regularly()), asyncio.create_task(stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _run_regularly(self) -> None:
        while True:
            for pool in self._pools:
                await _save_due(pool)
            await asyncio.sleep(self._interval)


async def _save_due(pool: Pool) -> None:
    for request in pool.unsaved.list_due():
        with log_errors("sandbox.save_again", label=request.spec.label), suppress(SandboxBusy):
            await pool.save_again(request)
