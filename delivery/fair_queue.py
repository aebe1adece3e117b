"""A queue whose work is taken fairly by account. Use it in place of a queue that several accounts fill."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic

from delivery.fair_gate import working_for
from delivery.fair_scheduler import FairScheduler, PoolSize, Work


class FairQueue(Generic[Work]):
    """Work for as many workers as the pool has places. An entry that waits already is not added again."""

    def __init__(self, size: PoolSize) -> None:
        self._scheduler = FairScheduler[Work](size)
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    def put(self, account: str, work: Work) -> None:
        """Add work of an account; after `close` it is ignored."""
        if not self._is_closed:
            self._scheduler.add(account, work)
            self._wake_one()

    def close(self) -> None:
        """Let the workers take what waits, and then end."""
        self._is_closed = True
        while self._idle:
            self._wake_one()

    def waiting(self, account: str) -> int:
        """Return how much work of an account waits."""
        return self._scheduler.waiting(account)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[tuple[str, Work] | None]:
        """Wait for the next work and hold its place during the block, which works for its account.

        The block gets None after `close` once no work waits.
        """
        entry = await self._next()
        if entry is None:
            yield None
            return
        try:
            with working_for(entry[0]):
                yield entry
        finally:
            self._scheduler.finish(entry[0])
            self._wake_one()

    async def _next(self) -> tuple[str, Work] | None:
        while (entry := self._scheduler.start_next()) is None:
            if self._is_closed and not self._scheduler.waiting_work():
                return None
            idle = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            try:
                await idle
            except asyncio.CancelledError:
                self._wake_one()  # the work that woke this worker is for another one
                raise
        return entry

    def _wake_one(self) -> None:
        """Wake one idle worker; the others sleep on, because one change lets at most one work start."""
        while self._idle:
            idle = self._idle.popleft()
            if not idle.done():
                idle.set_result(None)
                return
