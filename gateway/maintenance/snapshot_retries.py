"""Take the snapshots again that the snapshot store did not accept, or that a dead process did not take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from delivery.background import log_errors
from sandbox.errors import SandboxBusy
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import Reservation, SandboxRequest

GetRequest = Callable[[Reservation], Awaitable[SandboxRequest | None]]
"""Returns the request of a row's sandbox, as its record is now; None if the record is deleted."""

INTERVAL_SECONDS = 5.0
"""Seconds between two looks for sandboxes that are due again."""


class SnapshotRetries:
    """Saves the sandboxes that could not be saved, one after the other; `pools` are by provider.

    It begins with those that were used after their newest snapshot: the failures of an earlier process are
    not known any more.
    """

    def __init__(
        self, pools: Mapping[str, Pool], get_request: GetRequest, *, interval: float = INTERVAL_SECONDS
    ) -> None:
        self._pools = pools
        self._get_request = get_request
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
        with log_errors("sandbox.recover_unsaved"):
            for name, pool in self._pools.items():
                await self._recover(name, pool)
        while True:
            for pool in self._pools.values():
                await _save_due(pool)
            await asyncio.sleep(self._interval)

    async def _recover(self, provider: str, pool: Pool) -> None:
        """Make the sandboxes due that an earlier process used and did not save."""
        if pool.backend.snapshotter is None:
            return
        for row in await pool.backend.reservations.list_all():
            if row.provider == provider and row.is_unsaved:
                request = await self._get_request(row)
                if request is not None and request.provider == provider and request.snapshots:
                    pool.unsaved.recover(request)


async def _save_due(pool: Pool) -> None:
    for request in pool.unsaved.list_due():
        with log_errors("sandbox.save_again", label=request.spec.label), suppress(SandboxBusy):
            await pool.save_again(request)
