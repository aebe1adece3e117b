"""The simulated Slack's time: the real one, and what a test puts forward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable


class ChangeNotifier:
    """Something happened: who waits is woken, and looks for themselves."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake who waits."""
        now, self._next = self._next, asyncio.Event()
        now.set()

    def wait(self) -> Awaitable[object]:
        """Wait for the next time after this call, which may be before the answer is awaited."""
        return self._next.wait()


class SimulatedClock:
    """Tells the time, and lets those wait who wait for a moment."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._advanced = ChangeNotifier()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Put the clock forward, and wake who waited for that."""
        self._ahead += seconds
        self._advanced.notify()

    async def wait_until(self, moment: float) -> None:
        """Wait until it is so late, by this clock."""
        while (left := moment - self.now()) > 0:
            moved = asyncio.ensure_future(self._advanced.wait())
            try:
                await asyncio.wait({moved}, timeout=left)
            finally:
                moved.cancel()
