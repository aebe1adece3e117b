"""The lease of one piece of work: it is that of the work's shard, until the work outlives the shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from delivery.broker.port import Lease, LocalLease
from delivery.errors import LeaseLost


class WorkLease(LocalLease):
    """Held while another lease is: that of a shard, or in its place one of this work alone.

    Once one of them was lost before it was replaced, this one is lost. `on_release` is called when the work
    has ended.
    """

    def __init__(self, name: str, backing: Lease, on_release: Callable[[], object]) -> None:
        self.name = name
        self.ended = asyncio.Event()
        """Set when the work has ended."""
        self.changed = asyncio.Event()
        """Set when the lease is one of this work alone, or lost."""
        self._lost = asyncio.Event()
        self._reports: set[Callable[[], None]] = set()
        self._on_release = on_release
        self._backing = backing
        self._unwatch = backing.on_lost(self._report_lost)

    def replace_backing(self, backing: Lease) -> None:
        """Be held by a lease of this work alone from now on; raises LeaseLost if it is too late."""
        self.ensure_held()
        self._unwatch()
        self._backing = backing
        self._unwatch = backing.on_lost(self._report_lost)
        self.changed.set()

    def release(self) -> None:
        """Release the lease: the work has ended."""
        self._on_release()
        self._unwatch()
        self.ended.set()

    def _report_lost(self) -> None:
        self._lost.set()
        self.changed.set()
        for report in tuple(self._reports):
            report()

    def ensure_held(self) -> None:
        """Raise LeaseLost unless the lease is certainly still held."""
        if self._lost.is_set():
            raise LeaseLost(f"the lease {self.name} was lost")
        self._backing.ensure_held()

    async def wait_lost(self) -> None:
        """Return when the lease is lost."""
        await self._lost.wait()

    def on_lost(self, report: Callable[[], None]) -> Callable[[], None]:
        """Call `report` when the lease is lost, also if it is lost already."""
        self._reports.add(report)
        if self._lost.is_set():
            asyncio.get_running_loop().call_soon(report)
        return partial(self._reports.discard, report)
