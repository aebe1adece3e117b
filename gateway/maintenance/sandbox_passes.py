"""The passes of the reaper: each sandbox is visited, and each provider swept, by a task of its own."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from delivery.background import log_errors
from delivery.fair_gate import FairGate, working_for
from delivery.fair_scheduler import PoolSize
from sandbox.lifecycle.reaper import Reaper
from sandbox.lifecycle.reservations import Reservation

VISITS_AT_ONCE = 16
"""Sandboxes of one provider that are visited at the same time, shared fairly by account."""


class ReaperPasses:
    """Visits all sandboxes and sweeps all providers.

    A provider that does not answer delays no other provider. A sandbox that does not answer delays no other
    account's. What has not ended goes on during the next pass, which does not start it again.
    """

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._gates: defaultdict[str, FairGate] = defaultdict(
            lambda: FairGate(PoolSize(places=VISITS_AT_ONCE))
        )
        self._visits: dict[str, asyncio.Task[None]] = {}
        self._sweeps: dict[str, asyncio.Task[int]] = {}

    async def visit_all(self, *, patience: float | None = None, ending: str | None = None) -> None:
        """Visit every sandbox; return when all visits have ended, or after `patience` seconds.

        With `ending` those without an instance, for which little can be due, are visited only if their label
        ends with it.
        """
        rows = await self._reaper.list_rows(ending)
        self._visits = {label: visit for label, visit in self._visits.items() if not visit.done()}
        for row in rows:
            if row.label not in self._visits:
                self._visits[row.label] = asyncio.create_task(self._visit(row))
        if self._visits:
            await asyncio.wait(set(self._visits.values()), timeout=patience)

    async def _visit(self, row: Reservation) -> None:
        with log_errors("sandbox.visit", label=row.label), working_for(row.owner.account):
            async with self._gates[row.provider].hold():
                # A visit may wait for nothing: thousands of them would be one step of the event loop.
                await asyncio.sleep(0)
                await self._reaper.visit(row)

    async def sweep(self, prefix: str, *, patience: float | None = None) -> int:
        """Delete the orphans of every provider; return how many there were of those that have ended."""
        self._sweeps = {provider: sweep for provider, sweep in self._sweeps.items() if not sweep.done()}
        for provider in self._reaper.providers:
            if provider not in self._sweeps:
                self._sweeps[provider] = asyncio.create_task(self._sweep(provider, prefix))
        if not self._sweeps:
            return 0
        ended, _others = await asyncio.wait(set(self._sweeps.values()), timeout=patience)
        return sum(sweep.result() for sweep in ended)

    async def _sweep(self, provider: str, prefix: str) -> int:
        with log_errors("sandbox.sweep", provider=provider):
            return await self._reaper.sweep(provider, prefix)
        return 0

    async def aclose(self) -> None:
        """Cancel what has not ended; another process or the next start does it again."""
        unfinished: set[asyncio.Task[None] | asyncio.Task[int]] = {
            *self._visits.values(),
            *self._sweeps.values(),
        }
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
