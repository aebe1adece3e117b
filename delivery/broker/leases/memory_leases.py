"""Leases in memory, of a process that has its broker and its database to itself."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from delivery.broker.leases.held_lease import HeldLease, as_session
from delivery.broker.port import Lease, Leases, LocalLease
from delivery.errors import LeaseBusy


class MemoryLease(HeldLease, LocalLease):
    """A lease that is stored nowhere; `on_release` ends it."""

    def __init__(
        self, name: str, ttl: float, session: HeldLease | None, on_release: Callable[[MemoryLease], None]
    ) -> None:
        super().__init__(name, "", ttl, session)
        self.extend(1, float("inf"))
        self._on_release = on_release
        self._unwatch = session.on_lost(self.lose) if session is not None else None

    def release(self) -> None:
        """Release the lease."""
        if self._unwatch is not None:
            self._unwatch()
        self._on_release(self)
        self.end()


class MemoryLeases(Leases):
    """Leases of a process that has its broker and its database to itself.

    No other process could acquire them, so they do not expire, however late this process is. They end with
    the process. `revoke` simulates an expiry, for tests.
    """

    def __init__(self) -> None:
        self._held: dict[str, MemoryLease] = {}
        self._watched: defaultdict[str, list[asyncio.Event]] = defaultdict(list)

    @asynccontextmanager
    async def acquire(
        self, name: str, *, ttl: float = 6.0, session: Lease | None = None
    ) -> AsyncIterator[Lease]:
        """Acquire a lease at once or raise LeaseBusy."""
        lease = self._begin(name, ttl, as_session(session))
        if lease is None:
            raise LeaseBusy(f"the lease {name} is held by this process")
        try:
            yield lease
        finally:
            lease.release()

    def acquire_locally(self, name: str) -> LocalLease | None:
        """Acquire a lease unless it is held."""
        return self._begin(name)

    def _begin(self, name: str, ttl: float = 6.0, session: HeldLease | None = None) -> MemoryLease | None:
        if name in self._held and self._held[name].is_trusted:
            return None
        lease = self._held[name] = MemoryLease(name, ttl, session, self._forget)
        return lease

    def _forget(self, lease: MemoryLease) -> None:
        if self._held.get(lease.name) is lease:
            del self._held[lease.name]
            self._report_free(lease.name)

    def _report_free(self, name: str) -> None:
        for freed in self._watched.pop(name, ()):
            freed.set()

    @contextmanager
    def watch(self, name: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the lease is released; at once if it is free."""
        freed = asyncio.Event()
        if name in self._held:
            self._watched[name].append(freed)
        else:
            freed.set()
        yield freed

    async def is_held(self, name: str) -> bool:
        """Return whether the lease is held."""
        return name in self._held

    async def list_held(self, kind: str, *, after: Lease | None = None) -> frozenset[str]:  # noqa: ARG002
        """Return the names of the held leases of a kind."""
        return frozenset(name for name in self._held if name.startswith(f"{kind}:"))

    def revoke(self, name: str) -> None:
        """End a lease, as if it had expired."""
        self._held.pop(name).end()
        self._report_free(name)
