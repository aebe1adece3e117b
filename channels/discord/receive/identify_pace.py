"""Space the sessions that a bot begins; Discord allows a thousand a day, and one at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

IDENTIFY_SECONDS, MAX_IDENTIFY_SECONDS, IDENTIFY_WINDOW_SECONDS, FREE_IDENTIFIES = 5.0, 300.0, 3600.0, 10
"""Pause between two identifies (minimum, maximum), for how long one counts, and how many are free.

Further ones double the pause: Discord resets the token of a bot that begins a thousand sessions a day.
"""


def identify_wait(times: Sequence[float], now: float, free: int = FREE_IDENTIFIES) -> float:
    """Return the seconds until a new session may begin, from the times of the last ones."""
    recent = [when for when in times if now - when < IDENTIFY_WINDOW_SECONDS]
    if not recent:
        return 0.0
    gap = min(IDENTIFY_SECONDS * 2.0 ** max(0, len(recent) - free), MAX_IDENTIFY_SECONDS)
    return max(0.0, recent[-1] + gap - now)


class IdentifyPace:
    """The turns of a bot's shards to begin a session."""

    def __init__(self, shards: int = 1) -> None:
        self._free = FREE_IDENTIFIES + shards - 1
        self._times: deque[float] = deque(maxlen=self._free + 32)
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until a session may begin; one that was begun without an error counts."""
        async with self._lock:
            await asyncio.sleep(identify_wait(self._times, time.monotonic(), self._free))
            yield
            self._times.append(time.monotonic())
