"""Space the sessions that a bot begins: a platform such as Discord allows a thousand a day, one at a time."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

PAUSE_SECONDS, MAX_PAUSE_SECONDS, WINDOW_SECONDS, FREE_SESSIONS = 5.0, 300.0, 3600.0, 10
"""Pause between two sessions (minimum, maximum), for how long one counts, and how many are free.

Further ones double the pause: Discord resets the token of a bot that begins a thousand sessions a day.
"""


def session_wait(times: Sequence[float], now: float, free: int = FREE_SESSIONS) -> float:
    """Return the seconds until a new session may begin, from the times of the last ones."""
    recent = [when for when in times if now - when < WINDOW_SECONDS]
    if not recent:
        return 0.0
    gap = min(PAUSE_SECONDS * 2.0 ** max(0, len(recent) - free), MAX_PAUSE_SECONDS)
    return max(0.0, recent[-1] + gap - now)


class SessionPace:
    """The turns of a bot's shards to begin a session."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, shards: int = 1) -> AsyncIterator[None]:
        """Wait until one of the shards may begin a session; one that was begun without an error counts."""
        async with self._lock:
            times, free = self.begun(), FREE_SESSIONS + shards - 1
            await asyncio.sleep(session_wait(times, time.monotonic(), free))
            yield
            self._times = [*times, time.monotonic()]

    def begun(self) -> list[float]:
        """Return when the sessions of the last WINDOW_SECONDS were begun."""
        now = time.monotonic()
        return [when for when in self._times if now - when < WINDOW_SECONDS]


_paces: dict[int, SessionPace] = {}


def pace_for(settings: object) -> SessionPace:
    """Return the pace of a bot, the same one as long as its settings are the same object.

    A channel is opened again with the settings it has; after a change of its record it has new ones.
    """
    pace = _paces.get(id(settings))
    if pace is None:
        pace = _paces[id(settings)] = SessionPace()
        weakref.finalize(settings, _paces.pop, id(settings), None)
    return pace
