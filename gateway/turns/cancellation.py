"""Cancels: the turns performed in this process that somebody, perhaps on another replica, wants ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog

from delivery.database.engine import Database, Unavailable
from gateway.store.turns import turns

log = structlog.get_logger(__name__)

LOOK = 0.5
"""Seconds between looks for what was cancelled on another replica; here `cancel` reaches a turn at once."""


class Cancels:
    """Knows the turns at work here and which of them are to end. `look` is the time between looks."""

    def __init__(self, database: Database, *, look: float = LOOK) -> None:
        self._database = database
        self._look = look
        self._wanted: dict[str, asyncio.Event] = {}

    @contextmanager
    def of(self, turn: str) -> Iterator[asyncio.Event]:
        """Hold what is set when a turn is to end, while it is performed."""
        try:
            yield self._wanted.setdefault(turn, asyncio.Event())
        finally:
            self._wanted.pop(turn, None)

    def cancel(self, turn: str) -> None:
        """Cancel a turn at once if it is performed in this process."""
        if turn in self._wanted:
            self._wanted[turn].set()

    async def watch(self, stop: asyncio.Event) -> None:
        """Look for turns cancelled elsewhere, until stopped and nothing is performed any more."""
        while not stop.is_set() or self._wanted:
            for turn in await self._cancelled_elsewhere():
                self.cancel(turn)
            await self._pause(stop)

    async def _cancelled_elsewhere(self) -> list[str]:
        running = list(self._wanted)
        if not running:
            return []
        try:
            async with self._database.read() as connection:
                return await turns.cancelled_among(connection, running)
        except Unavailable as error:
            log.warning("conductor.cancel_look_failed", error=str(error))
            return []

    async def _pause(self, stop: asyncio.Event) -> None:
        if stop.is_set():
            await asyncio.sleep(0.05)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._look):
                await stop.wait()
