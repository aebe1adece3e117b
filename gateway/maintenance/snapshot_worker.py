"""Take snapshots beside the turns: of sandboxes that were used, and again of those that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from delivery.background import log_errors
from delivery.fair_gate import FairGate
from sandbox.errors import SandboxBusy
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import Reservation, SandboxRequest

GetRequest = Callable[[Reservation], Awaitable[SandboxRequest | None]]
"""Returns the request of a row's sandbox, as its record is now; None if the record is deleted."""

INTERVAL_SECONDS = 5.0
"""Seconds between two looks for sandboxes that are due again."""

STOP_SECONDS = 8.0
"""Seconds after a stop for the snapshots that are due then; the next start takes the others."""


class SnapshotWorker:
    """Saves the sandboxes that are due, some at once; `pools` are by provider.

    It begins with those that were used after their newest snapshot: what an earlier process did not save is
    not known any more. `places` limits how many are packed and sent at once, fairly by account.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        get_request: GetRequest,
        places: FairGate,
        *,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._pools = pools
        self._get_request = get_request
        self._places = places
        self._interval = interval
        self._saving: dict[str, asyncio.Task[None]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Save until stopped, and then once more what is due, for STOP_SECONDS at most."""
        loops = [asyncio.create_task(self._run_regularly(*one)) for one in self._pools.items()]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*loops, stopping], return_when=asyncio.FIRST_COMPLETED)
            for pool in self._pools.values():
                self._start_due(pool)
            if stop.is_set() and self._saving:
                await asyncio.wait(self._saving.values(), timeout=STOP_SECONDS)
        finally:
            tasks = [*loops, stopping, *self._saving.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _run_regularly(self, name: str, pool: Pool) -> None:
        with log_errors("sandbox.recover_unsaved"):
            await self._recover(name, pool)
        while True:
            pool.unsaved.added.clear()
            self._start_due(pool)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await pool.unsaved.added.wait()

    async def _recover(self, provider: str, pool: Pool) -> None:
        """Make the sandboxes due that an earlier process used and did not save."""
        if pool.backend.snapshotter is None:
            return
        for row in await pool.backend.reservations.list_unsaved(provider):
            request = await self._get_request(row)
            if request is not None and request.provider == provider and request.snapshots:
                pool.unsaved.recover(request)

    def _start_due(self, pool: Pool) -> None:
        """Save each sandbox that is due, unless it is being saved: it is due again after that."""
        for request in pool.unsaved.list_due():
            label = request.spec.label
            if label not in self._saving:
                self._saving[label] = asyncio.create_task(self._save(pool, request))

    async def _save(self, pool: Pool, request: SandboxRequest) -> None:
        try:
            with log_errors("sandbox.save", label=request.spec.label), suppress(SandboxBusy):
                async with self._places.hold(request.owner.account):
                    await pool.snapshots.save(request)
        finally:
            del self._saving[request.spec.label]
