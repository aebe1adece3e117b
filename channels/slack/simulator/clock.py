"""The simulated Slack's clock: real time plus an offset that tests set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable


class ChangeNotifier:
    """Wakes those who wait for a change, who then check the state themselves."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiters."""
        now, self._next = self._next, asyncio.Event()
        now.set()

    def wait(self) -> Awaitable[object]:
        """Return an awaitable for the next notification after this call."""
        return self._next.wait()


class SimulatedClock:
    """A clock that can be advanced, and wakes those who wait for a time."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._advanced = ChangeNotifier()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Advance the clock and wake those who waited for that time."""
        self._ahead += seconds
        self._advanced.notify()

    async def wait_until(self, moment: float) -> None:
        """Wait until this clock reaches a time."""
        while (left := moment - self.now()) > 0:
            moved = asyncio.ensure_future(self._advanced.wait())
            try:
                await asyncio.wait({moved}, timeout=left)
            finally:
                moved.cancel()
