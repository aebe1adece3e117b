"""A lock for one holder at a time: urgent waiters first, then the accounts in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from delivery.fair_gate import current_account
from delivery.fair_scheduler import FairScheduler, PoolSize


class FairLock:
    """A lock in the order of arrival, shared fairly among accounts.

    Urgent waiters go first. Within each kind the accounts take turns, and the waiters of one account keep
    their order. `before_unlock` is called when no step waits any more; if it returns True it keeps the lock,
    and releases it later from any callback of the loop.
    """

    def __init__(self, before_unlock: Callable[[], bool] = lambda: False) -> None:
        self._before_unlock = before_unlock
        self._urgent = FairScheduler[asyncio.Future[None]](PoolSize(places=1))
        self._normal = FairScheduler[asyncio.Future[None]](PoolSize(places=1))
        self._locked = False
        self._waiters = 0

    @property
    def waiters(self) -> int:
        """Return how many callers wait."""
        return self._waiters

    async def acquire(self, *, urgent: bool = False) -> None:
        """Wait for the lock, for the account of the current task; call `release` once afterwards."""
        queue, account = self._urgent if urgent else self._normal, current_account()
        if self._locked:
            await self._wait(queue, account)
        else:
            queue.record_start(account)
        self._locked = True

    async def _wait(self, queue: FairScheduler[asyncio.Future[None]], account: str) -> None:
        granted = asyncio.get_running_loop().create_future()
        queue.add(account, granted)
        self._waiters += 1
        try:
            await granted
        except asyncio.CancelledError:
            queue.discard(account, granted)
            if not granted.cancelled():
                self.release()  # the lock had been granted already
            raise
        finally:
            self._waiters -= 1

    def release(self) -> None:
        """Pass the lock to the next waiter without unlocking it, so that a newcomer cannot overtake."""
        if not (self._waiters and self._grant_next()) and not self._before_unlock():
            self._locked = False

    def _grant_next(self) -> bool:
        """Give the lock to the next waiter; return False if all of them were cancelled."""
        for queue in (self._urgent, self._normal):
            while (entry := queue.start_next()) is not None:
                account, waiter = entry
                queue.finish(account)  # the lock itself admits one holder at a time
                if not waiter.done():  # else it was cancelled
                    waiter.set_result(None)
                    return True
        return False
