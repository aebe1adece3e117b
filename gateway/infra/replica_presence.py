"""Presence of replicas: each renews a lease on the broker; when it ends, the others consider it dead.

Sandbox locks in SQL survive a database outage and would otherwise block others long after a kill. A replica
that cannot reach the broker until its presence ends is considered dead. It must then check whether others
have acquired its locks: `recheck` is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import structlog

from delivery.broker.port import Leases
from delivery.broker.stream_config import subject_token
from delivery.errors import DeliveryError

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
"""Seconds for which the result of a presence check is reused."""
RETRY_SECONDS = 0.2


class ReplicaPresence:
    """The presence of this process, and checks of other replicas' presence.

    `name` consists of `instance`, which is unique among running processes, and `boot`, which is unique to
    this process. Another boot of the same instance is dead.
    """

    def __init__(self, leases: Leases, *, instance: str, boot: str, ttl: float) -> None:
        self.instance = instance
        self._instance_prefix = f"{subject_token(instance)}:"
        self.name = f"{self._instance_prefix}{boot}"
        self._leases = leases
        self._ttl = ttl
        self._confirmed = asyncio.Event()
        self._seen_alive: dict[str, float] = {}

    @property
    def is_confirmed(self) -> bool:
        """Return whether the other replicas certainly see this replica as alive."""
        return self._confirmed.is_set()

    @asynccontextmanager
    async def maintained(self, recheck: Callable[[], None]) -> AsyncIterator[None]:
        """Maintain the presence until the block ends.

        `recheck` is called repeatedly while the others may consider this replica dead, and once afterwards.
        """
        keeping = asyncio.create_task(self._maintain(recheck))
        try:
            await self._confirmed.wait()
            yield
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})

    async def _maintain(self, recheck: Callable[[], None]) -> None:
        while True:
            try:
                await self._hold_lease(recheck)
            except DeliveryError as error:
                log.debug("presence.broker_unavailable", error=str(error))
            except Exception:  # the outermost loop of presence: the others must learn of us again
                log.exception("presence.failed")
            if self._confirmed.is_set():
                self._confirmed.clear()
                log.warning("presence.lost", remedy="the broker was away for longer than lease_ttl")
            recheck()
            await asyncio.sleep(RETRY_SECONDS)

    async def _hold_lease(self, recheck: Callable[[], None]) -> None:
        async with self._leases.acquire(f"p:{self.name}", ttl=self._ttl) as lease:
            self._confirmed.set()
            recheck()
            await lease.wait_lost()

    def is_own_earlier_boot(self, name: str) -> bool:
        """Return whether this is an earlier process of the same instance, which is dead."""
        return name.startswith(self._instance_prefix) and name != self.name

    async def is_dead(self, name: str) -> bool:
        """Return whether the process of this name is dead or cannot reach the broker; False when unknown."""
        if name.startswith(self._instance_prefix):
            return self.is_own_earlier_boot(name)
        if monotonic() - self._seen_alive.get(name, -POLL_SECONDS) < POLL_SECONDS:
            return False
        try:
            lives = await self._leases.is_held(f"p:{name}")
        except DeliveryError:
            lives = True
        if lives:
            self._seen_alive[name] = monotonic()
        return not lives
