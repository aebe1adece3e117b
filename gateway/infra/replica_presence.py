"""Presence: a lease on the broker for each replica, by whose end the others learn that it died.

What is held in SQL through an outage of the database, the leases on sandboxes, would otherwise keep others
waiting for as long after a kill. A replica that cannot reach the broker for so long that its presence ends is
taken for dead, and has to see whether others have taken what it holds: `doubt` is called.
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
"""Seconds between looks whether a replica still lives."""
RETRY_SECONDS = 0.2


class ReplicaPresence:
    """This process's presence among the replicas, and a look at that of the others.

    Its `name` tells `instance`, which is ours alone while we live, and `boot`, which is this process: another
    boot of our instance is certainly dead.
    """

    def __init__(self, leases: Leases, *, instance: str, boot: str, ttl: float) -> None:
        self._instance_prefix = f"{subject_token(instance)}:"
        self.name = f"{self._instance_prefix}{boot}"
        self._leases = leases
        self._ttl = ttl
        self._confirmed = asyncio.Event()
        self._seen_alive: dict[str, float] = {}

    @property
    def is_confirmed(self) -> bool:
        """Whether the others certainly know that this replica lives."""
        return self._confirmed.is_set()

    @asynccontextmanager
    async def maintained(self, recheck: Callable[[], None]) -> AsyncIterator[None]:
        """Be present until the block ends.

        `doubt` is called again and again while the others may think otherwise, and once afterwards.
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
        """Say whether this is an earlier process of ours, which is certainly dead."""
        return name.startswith(self._instance_prefix) and name != self.name

    async def is_dead(self, name: str) -> bool:
        """Say whether the process of this name is dead, or cannot reach the broker; False when in doubt."""
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
