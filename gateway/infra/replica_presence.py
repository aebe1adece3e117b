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
from delivery.broker.stream_config import token
from delivery.errors import DeliveryError

log = structlog.get_logger(__name__)

LOOK_AGAIN = 1.0
"""Seconds between looks whether a replica still lives."""
TRY_AGAIN = 0.2


class Presence:
    """This process's presence among the replicas, and a look at that of the others.

    Its `name` tells `instance`, which is ours alone while we live, and `boot`, which is this process: another
    boot of our instance is certainly dead.
    """

    def __init__(self, leases: Leases, *, instance: str, boot: str, ttl: float) -> None:
        self._ours = f"{token(instance)}:"
        self.name = f"{self._ours}{boot}"
        self._leases = leases
        self._ttl = ttl
        self._here = asyncio.Event()
        self._lived: dict[str, float] = {}

    @property
    def is_certain(self) -> bool:
        """Whether the others certainly know that this replica lives."""
        return self._here.is_set()

    @asynccontextmanager
    async def kept(self, doubt: Callable[[], None]) -> AsyncIterator[None]:
        """Be present until the block ends.

        `doubt` is called again and again while the others may think otherwise, and once afterwards.
        """
        keeping = asyncio.create_task(self._keep(doubt))
        try:
            await self._here.wait()
            yield
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})

    async def _keep(self, doubt: Callable[[], None]) -> None:
        while True:
            try:
                await self._stay(doubt)
            except DeliveryError as error:
                log.debug("presence.waits", error=str(error))
            except Exception:  # the outermost loop of presence: the others must learn of us again
                log.exception("presence.failed")
            if self._here.is_set():
                self._here.clear()
                log.warning("presence.lost", remedy="the broker was away for longer than lease_ttl")
            doubt()
            await asyncio.sleep(TRY_AGAIN)

    async def _stay(self, doubt: Callable[[], None]) -> None:
        async with self._leases.hold(f"p:{self.name}", ttl=self._ttl) as lease:
            self._here.set()
            doubt()
            await lease.wait_lost()

    def is_past(self, name: str) -> bool:
        """Say whether this is an earlier process of ours, which is certainly dead."""
        return name.startswith(self._ours) and name != self.name

    async def is_gone(self, name: str) -> bool:
        """Say whether the process of this name is dead, or cannot reach the broker; False when in doubt."""
        if name.startswith(self._ours):
            return self.is_past(name)
        if monotonic() - self._lived.get(name, -LOOK_AGAIN) < LOOK_AGAIN:
            return False
        try:
            lives = await self._leases.is_held(f"p:{name}")
        except DeliveryError:
            lives = True
        if lives:
            self._lived[name] = monotonic()
        return not lives
