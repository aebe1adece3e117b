"""Lets in as many callers as may use connections: fewer while the server of the database grants fewer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from delivery.fair_gate import FairGate
from delivery.fair_scheduler import PoolSize

RETRY_SECONDS = 10.0
"""How long a lowered limit holds. The server may grant more by then: others have closed connections."""


class ConnectionGate:
    """A fair gate before the connections of a database."""

    def __init__(self, places: int) -> None:
        self._full = PoolSize(places=places)
        self._gate = FairGate(self._full)
        self._lowered_at: float | None = None

    async def enter(self, *, timeout: float) -> Callable[[], None]:
        """Wait for a place; see `FairGate.enter`."""
        if self._lowered_at is not None and self._now() - self._lowered_at > RETRY_SECONDS:
            self.restore()
        return await self._gate.enter(timeout=timeout)

    def lower(self) -> bool:
        """Let in no more callers than are inside now; return False if none is inside.

        Call it after a caller could not open a connection, and has left: those inside may have some.
        """
        if not self._gate.used:
            return False
        self._gate.resize(PoolSize(places=self._gate.used))
        self._lowered_at = self._now()
        return True

    def restore(self) -> None:
        """Let in as many callers as at first: a connection has been opened."""
        if self._lowered_at is not None:
            self._lowered_at = None
            self._gate.resize(self._full)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
