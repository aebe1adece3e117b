"""Cancellation: turns that run in this process and were cancelled here or on another replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog

from delivery.background import log_errors
from delivery.database.engine import Database, DatabaseUnavailable
from gateway.store.turns import turns

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.5
"""Seconds between two polls for turns cancelled on other replicas; `cancel` works at once in this process."""


class CancellationWatcher:
    """Tracks the running turns of this process and cancels them. `interval` is the seconds between polls."""

    def __init__(self, database: Database, *, interval: float = POLL_SECONDS) -> None:
        self._database = database
        self._interval = interval
        self._running: dict[str, Callable[[], None]] = {}

    @contextmanager
    def track(self, turn: str, cancel: Callable[[], None]) -> Iterator[None]:
        """Call `cancel` if the turn is cancelled during the block; it may be called repeatedly."""
        self._running[turn] = cancel
        try:
            yield
        finally:
            self._running.pop(turn, None)

    def cancel(self, turn: str) -> None:
        """Cancel a turn at once if it runs in this process."""
        if turn in self._running:
            self._running[turn]()

    async def run(self, stop: asyncio.Event) -> None:
        """Poll for turns cancelled elsewhere until stopped and no turn runs any more."""
        while not stop.is_set() or self._running:
            with log_errors("turns.cancellation"):
                for turn in await self._list_cancelled():
                    self.cancel(turn)
            await self._pause(stop)

    async def _list_cancelled(self) -> list[str]:
        running = list(self._running)
        if not running:
            return []
        try:
            async with self._database.read() as connection:
                return await turns.list_cancelled(connection, running)
        except DatabaseUnavailable as error:
            log.warning("turns.cancel_poll_failed", error=error)
            return []

    async def _pause(self, stop: asyncio.Event) -> None:
        if stop.is_set():
            await asyncio.sleep(0.05)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._interval):
                await stop.wait()
