"""Lock sandboxes so that one replica at a time works on each, by expiring, renewed and fenced leases.

Calls of one process share a lease. An exclusive lock (to suspend, save or delete) is granted only while no
call is running. If no other replica can exist, no lease is written.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from sandbox.errors import ProviderUnreachable, SandboxBusy
from sandbox.lifecycle.waits import Wait, reported_wait

POLL_SECONDS = 0.1
RENEWALS_PER_TTL = 3
OWN_PATIENCE = 10
"""A call waits so many times longer if this process itself has the lock: it packs a large snapshot."""
EXPIRY_MARGIN = 0.1
"""The last part of a lease's life, in which it is no longer trusted."""


class LockStore(Protocol):
    """Stores the leases. A lease expires `ttl` seconds after it was acquired or renewed."""

    @abstractmethod
    async def acquire(self, label: str, *, ttl: float) -> int | None:
        """Acquire the lease if no other process holds it; return its fence, which only grows, or None.

        `ttl` is in seconds. Called only while this process does not hold it: a lease under our name is a
        leftover. Raises DatabaseUnavailable.
        """

    @abstractmethod
    async def renew(self, label: str, fence: int, *, ttl: float) -> bool:
        """Renew the lease for `ttl` seconds; return False if another process has acquired it.

        Raises ProviderUnreachable if the store does not answer.
        """

    @abstractmethod
    async def release(self, label: str, fence: int) -> None:
        """Release the lease if it is still ours; raises DatabaseUnavailable."""


@dataclass(slots=True)
class _SandboxLock:
    """The state of one sandbox in this process."""

    users: int = 0
    exclusive: bool = False
    fence: int | None = None
    expires_at: float = 0.0
    mutex: asyncio.Lock = field(default_factory=asyncio.Lock)


class SandboxLocks:
    """Shared and exclusive locks on sandboxes, held across replicas by renewed leases.

    Without a lock store (`leases` is None) only this process is considered. `timeout` is the most that a call
    waits for another replica or for an exclusive lock, in seconds.
    """

    def __init__(self, store: LockStore | None = None, *, ttl: float = 30.0, timeout: float = 60.0) -> None:
        self._store = store
        self._ttl = ttl
        self._timeout = timeout
        self._locks: dict[str, _SandboxLock] = {}
        self._recheck_count = 0
        self._recheck_requested = asyncio.Event()

    def recheck(self) -> None:
        """Check now whether this process still holds its leases; others may have acquired them."""
        self._recheck_count += 1
        self._recheck_requested.set()
        self._recheck_requested = asyncio.Event()

    @asynccontextmanager
    async def shared(self, label: str) -> AsyncIterator[None]:
        """Share the sandbox with other calls of this process; raises SandboxBusy after the time-out.

        If the lease is lost, the call inside is cancelled with ProviderUnreachable and writes nothing more.
        """
        with reported_wait(Wait.LOCKED):
            hold = await self._acquire(label, exclusive=False, timeout=self._timeout)
        try:
            async with self._renewing(label, hold):
                yield
        finally:
            hold.users -= 1
            await self._release(label, hold)

    @asynccontextmanager
    async def exclusive(self, label: str, *, timeout: float = 0.0) -> AsyncIterator[None]:
        """Lock the sandbox exclusively; raises SandboxBusy if a call is running."""
        hold = await self._acquire(label, exclusive=True, timeout=timeout)
        try:
            async with self._renewing(label, hold):
                yield
        finally:
            hold.exclusive = False
            await self._release(label, hold)

    async def _acquire(self, label: str, *, exclusive: bool, timeout: float) -> _SandboxLock:
        began = time.monotonic()
        while True:
            hold = self._locks.setdefault(label, _SandboxLock())
            if await self._try_acquire(label, hold, exclusive=exclusive):
                return hold
            is_ours = hold.exclusive and not exclusive
            patience = timeout * OWN_PATIENCE if is_ours else timeout
            if time.monotonic() >= began + patience:
                raise SandboxBusy
            await asyncio.sleep(POLL_SECONDS)

    async def _try_acquire(self, label: str, lock: _SandboxLock, *, exclusive: bool) -> bool:
        async with lock.mutex:
            if lock is not self._locks.get(label) or lock.exclusive or (exclusive and lock.users):
                return False
            if self._store is not None and lock.fence is None:
                requested_at = time.monotonic()
                lock.fence = await self._store.acquire(label, ttl=self._ttl)
                lock.expires_at = requested_at + self._ttl
                if lock.fence is None:
                    self._discard(label, lock)
                    return False
            lock.exclusive = exclusive
            lock.users += not exclusive
            return True

    async def _release(self, label: str, lock: _SandboxLock) -> None:
        async with lock.mutex:
            if lock.users or lock.exclusive:
                return
            self._discard(label, lock)
            if self._store is not None and lock.fence is not None:
                await self._store.release(label, lock.fence)

    def _discard(self, label: str, lock: _SandboxLock) -> None:
        if self._locks.get(label) is lock:
            del self._locks[label]

    @asynccontextmanager
    async def _renewing(self, label: str, lock: _SandboxLock) -> AsyncIterator[None]:
        if self._store is None:
            yield
            return
        try:
            async with asyncio.timeout(None) as bound:
                renewing = asyncio.create_task(self._renew(label, lock, bound))
                try:
                    yield
                finally:
                    renewing.cancel()
                    with suppress(asyncio.CancelledError):
                        await renewing
        except TimeoutError:
            if bound.expired():
                raise ProviderUnreachable(
                    "the lease on the sandbox was lost; the call was cancelled"
                ) from None
            raise

    async def _renew(self, label: str, lock: _SandboxLock, bound: asyncio.Timeout) -> None:
        """Renew the lease until cancelled; if renewal fails, cancel what runs under it."""
        assert self._store is not None
        doubts = self._recheck_count
        while True:
            if doubts == self._recheck_count:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._ttl / RENEWALS_PER_TTL):
                        await self._recheck_requested.wait()
            doubted, doubts = doubts != self._recheck_count, self._recheck_count
            requested_at = time.monotonic()
            old = lock.expires_at - requested_at < self._ttl * (1 - 1 / RENEWALS_PER_TTL) + EXPIRY_MARGIN
            if (old or doubted) and not await self._renew_once(label, lock, requested_at):
                bound.reschedule(asyncio.get_running_loop().time())
                return

    async def _renew_once(self, label: str, lock: _SandboxLock, requested_at: float) -> bool:
        assert self._store is not None
        assert lock.fence is not None
        try:
            async with asyncio.timeout(self._ttl / RENEWALS_PER_TTL):
                if not await self._store.renew(label, lock.fence, ttl=self._ttl):
                    return False
        except (TimeoutError, ProviderUnreachable):
            return time.monotonic() < lock.expires_at - self._ttl * EXPIRY_MARGIN
        lock.expires_at = requested_at + self._ttl
        return True
