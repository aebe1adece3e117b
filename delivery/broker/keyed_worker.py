"""Handle the wake-ups of one queue: one call per key at a time, and fairly among accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial

import structlog

from delivery.background import log_errors
from delivery.broker.port import Lease, Leases, LocalLease, SendWakeUp, WakeUp, WakeUps, WorkQueue
from delivery.database.engine import DatabaseUnavailable, is_dangling_reference
from delivery.errors import DeliveryError, LeaseBusy
from delivery.fair_gate import set_current_account
from delivery.fair_scheduler import FairScheduler, PoolSize

log = structlog.get_logger(__name__)

RECEIVED_AT_ONCE = 64
"""Wake-ups that the broker sends before the first of them is confirmed."""

MAX_WAITING = 10_000
"""Keys of one account that wait in this process; the janitor repeats the wake-ups of further ones."""

_LEASE_BUSY_SECONDS = 0.5
_RETRY_SECONDS = 1.0
_FAILED_SECONDS = 5.0


class ReservedKey:
    """A key whose place and lease a transaction has: `start` its work after the commit, or `release` it."""

    def __init__(self, worker: KeyedWorker, account: str, key: str, lease: LocalLease) -> None:
        self._worker = worker
        self._account = account
        self._key = key
        self._lease = lease

    def start(self, work: Callable[[str, Lease], Awaitable[None]]) -> None:
        """Run `work(key, lease)` in the place; release the lease when it ends."""
        self._worker.start_reserved(self._account, self._key, partial(self._hold_while, work))

    async def _hold_while(self, work: Callable[[str, Lease], Awaitable[None]], key: str) -> None:
        try:
            await work(key, self._lease)
        finally:
            self._lease.release()

    def release(self) -> None:
        """Give the place back, and wake the key: the transaction may have been committed all the same."""
        self._lease.release()
        self._worker.release_reserved(self._account, self._key)


class KeyedWorker:
    """Runs `work(key)` for every wake-up, at most one call per key at a time.

    A key that finds no place waits in this process, behind the other keys of its account. Its wake-up is
    confirmed at once: an account with many keys therefore never delays the wake-ups of other accounts in the
    broker, and SQL says what is left to do after a crash. A wake-up that arrives during a call triggers one
    more call. `work` raises LeaseBusy when another replica works on the key. After any error the key is woken
    again. While no place is free, no wake-up is received, so that repeated ones coalesce where they wait.
    """

    def __init__(
        self,
        queue: WorkQueue,
        wake_ups: WakeUps,
        work: Callable[[str], Awaitable[None]],
        *,
        wake: SendWakeUp,
        size: PoolSize,
    ) -> None:
        self._queue = queue
        self._wake_ups = wake_ups
        self._work = work
        self._wake = wake
        self._scheduler = FairScheduler[str](size)
        self._wake_again: dict[str, asyncio.Event] = {}
        self._place_freed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._context = Context()
        self._stop = asyncio.Event()
        self._reserved = 0

    def reserve(self, account: str, key: str, leases: Leases, name: str) -> ReservedKey | None:
        """Take a place for a key at once, and the lease `name`, for work that a transaction claims.

        None if its work is in progress, the account has no place now, this worker does not run, or the lease
        cannot be acquired without the broker.
        """
        if self._group is None or self._stop.is_set() or key in self._wake_again:
            return None
        lease = leases.acquire_locally(name)
        if lease is None:
            return None
        if not self._scheduler.start_at_once(account):
            lease.release()
            return None
        self._wake_again[key] = asyncio.Event()
        self._reserved += 1
        return ReservedKey(self, account, key, lease)

    def start_reserved(self, account: str, key: str, work: Callable[[str], Awaitable[None]]) -> None:
        """Start the work of a reserved key."""
        self._reserved -= 1
        self._start(account, key, work)
        self._place_freed.set()

    def release_reserved(self, account: str, key: str) -> None:
        """Give back the place of a reserved key, and wake it."""
        self._reserved -= 1
        self._wake_again[key].set()
        self._finish(account, key)

    def woken(self, key: str) -> asyncio.Event:
        """Return the event that a wake-up sets during the call for a key; who clears it looks for work."""
        return self._wake_again[key]

    async def run(self, stop: asyncio.Event) -> None:
        """Handle wake-ups until `stop`; then wait for the calls in progress, and pass on the waiting keys."""
        self._stop, self._context = stop, copy_context()
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._end_with(stop))
            async for wake_up in self._wake_ups.subscribe(self._queue, at_most=RECEIVED_AT_ONCE, stop=stop):
                with log_errors("worker.received", key=wake_up.key):
                    await wake_up.ack()
                self._receive(wake_up)
                self._start_waiting()
                await self._wait_while(lambda: not self._scheduler.free and not stop.is_set())
            await self._wait_while(lambda: self._reserved > 0)
        self._group = None
        for account, key in self._scheduler.waiting_work():
            self._wake(self._queue, key, account=account)

    async def _end_with(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._place_freed.set()

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        while condition():
            self._place_freed.clear()
            await self._place_freed.wait()

    def _receive(self, wake_up: WakeUp) -> None:
        if wake_up.key in self._wake_again:
            self._wake_again[wake_up.key].set()
        elif self._scheduler.waiting(wake_up.account) < MAX_WAITING:
            self._scheduler.add(wake_up.account, wake_up.key)

    def _start_waiting(self) -> None:
        while not self._stop.is_set() and (entry := self._scheduler.start_next()) is not None:
            account, key = entry
            self._wake_again[key] = asyncio.Event()
            self._start(account, key, self._work)

    def _start(self, account: str, key: str, work: Callable[[str], Awaitable[None]]) -> None:
        """Start the task of a key, in the context of this worker and not in that of who starts it."""
        assert self._group is not None
        context = self._context.copy()
        context.run(set_current_account, account)
        self._group.create_task(self._handle(account, key, work), context=context)

    async def _handle(self, account: str, key: str, work: Callable[[str], Awaitable[None]]) -> None:
        try:
            retry_after = await self._try(key, work)
        finally:
            self._finish(account, key)
        if retry_after is not None:
            self._wake_later(retry_after, account, key)

    def _finish(self, account: str, key: str) -> None:
        """Give the place of a key to others, and wake the key again if another wake-up came."""
        self._scheduler.finish(account)
        woken = self._wake_again.pop(key).is_set()
        self._start_waiting()
        self._place_freed.set()
        if woken:
            self._wake(self._queue, key, account=account)

    async def _try(self, key: str, work: Callable[[str], Awaitable[None]]) -> float | None:
        """Work on a key; return the seconds after which to try again, None if it is done."""
        try:
            await work(key)
        except LeaseBusy:
            return _LEASE_BUSY_SECONDS
        except (DeliveryError, DatabaseUnavailable, OSError) as error:
            log.warning("worker.retrying", queue=str(self._queue), key=key, error=error)
            return _RETRY_SECONDS
        except Exception as error:  # the outermost loop of a key: other keys must continue
            if is_dangling_reference(error):
                log.warning("worker.reference_deleted", queue=str(self._queue), key=key)
                return _RETRY_SECONDS
            log.exception("worker.failed", queue=str(self._queue), key=key)
            return _FAILED_SECONDS
        return None

    def _wake_later(self, seconds: float, account: str, key: str) -> None:
        """Wake a key again, without replacing a timer that the broker keeps for it."""
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, lambda: self._wake(self._queue, key, account=account))
