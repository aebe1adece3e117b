"""Presence of replicas: each renews a lease on the broker; when it ends, the others consider it dead.

Sandbox locks in SQL survive a database outage and would otherwise block others long after a kill. A replica
that cannot reach the broker until its presence ends is considered dead. It must then check whether others
have acquired its locks: `recheck` is called.

Each also announces its database by a lease, because gateways on two databases must not share a broker.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import monotonic

import structlog

from delivery.background import log_errors
from delivery.broker.port import Leases
from delivery.broker.stream_config import subject_token
from delivery.errors import DeliveryError, LeaseBusy

log = structlog.get_logger(__name__)

_EXPIRY_SECONDS = 2.0
"""Seconds after which the lease of a killed process has certainly expired, beyond its time to live."""

POLL_SECONDS = 1.0
"""Seconds for which the result of a presence check is reused."""
RETRY_SECONDS = 0.2

_ANNOUNCING = "start:database"
"""The lease of the one gateway that looks for others and announces its database."""


class BrokerInUse(Exception):
    """Gateways on another database use the NATS server; a later start succeeds when they have ended."""

    def __init__(self) -> None:
        super().__init__(
            "nats_url (DOVECOTE_NATS_URL): a gateway on another database, or a copy of this one, uses this "
            "NATS server. They would take each other's turns and deliveries, and delete each other's events. "
            "Stop the other one, or give each database a NATS server, or an account of one, of its own"
        )


async def replicas_with_other_key(leases: Leases, *, database: str, first_key: str) -> list[str]:
    """Return host and process id of the gateways on a database that encrypt with another key than this one.

    Those that were killed are among them until their leases expire. Raises BrokerUnreachable, BrokerRefused.
    """
    held = await leases.list_held("db")
    announced = [name.split(":", 4)[3:] for name in held if name.startswith(f"db:{database}:")]
    return sorted(place for key, place in filter(None, announced) if key != first_key)


class DatabaseAnnouncement:
    """Announces on the broker the database of this process, so that gateways on another one do not start.

    It also names the key that encrypts the secrets, and the process, for the operator who replaces the key.
    """

    def __init__(self, leases: Leases, *, database: str, boot: str, first_key: str, ttl: float) -> None:
        self._leases = leases
        self._prefix = f"db:{database}:"
        self._name = f"{self._prefix}{boot}:{first_key}:{socket.gethostname()}/{os.getpid()}"
        self._ttl = ttl

    @asynccontextmanager
    async def maintained(self) -> AsyncIterator[None]:
        """Announce the database until the block ends, also after the broker was away.

        Of gateways on several databases that start at once, the first to be announced goes on. The leases of
        killed ones last until their time to live is over, so this waits for that time. Raises BrokerInUse,
        BrokerUnreachable, BrokerRefused.
        """
        async with AsyncExitStack() as stack:
            deadline = self._deadline()
            while not await self._announce_alone(stack):
                await _wait_until(deadline)
            yield

    async def require_alone(self) -> None:
        """Raise BrokerInUse if gateways on other databases are announced, after the wait of `maintained`."""
        deadline = self._deadline()
        while self._foreign(await self._leases.list_held("db")):
            await _wait_until(deadline)

    async def _announce_alone(self, stack: AsyncExitStack) -> bool:
        """Announce the database unless others are announced; one gateway at a time looks and announces."""
        with suppress(LeaseBusy):
            async with self._leases.acquire(_ANNOUNCING, ttl=self._ttl) as announcing:
                if self._foreign(await self._leases.list_held("db", after=announcing)):
                    return False
                announced = asyncio.Event()
                keeping = asyncio.create_task(self._maintain(announced))
                stack.push_async_callback(_cancel, keeping)
                await announced.wait()
                return True
        return False

    def _foreign(self, held: frozenset[str]) -> list[str]:
        return [name for name in held if not name.startswith(self._prefix)]

    def _deadline(self) -> float:
        return monotonic() + self._ttl + _EXPIRY_SECONDS

    async def _maintain(self, announced: asyncio.Event) -> None:
        while True:
            with log_errors("database.announcement"), suppress(DeliveryError):
                async with self._leases.acquire(self._name, ttl=self._ttl) as lease:
                    announced.set()
                    await lease.wait_lost()
            await asyncio.sleep(RETRY_SECONDS)


async def _wait_until(deadline: float) -> None:
    """Wait for the next look; raises BrokerInUse when there is none."""
    if monotonic() > deadline:
        raise BrokerInUse
    await asyncio.sleep(RETRY_SECONDS)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


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
        self._present: frozenset[str] = frozenset()
        self._listed_at = -POLL_SECONDS

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

    async def is_instance_present(self, instance: str) -> bool:
        """Return whether a process of an instance is present; True when unknown."""
        now = monotonic()
        if now - self._listed_at >= POLL_SECONDS:
            try:
                self._present = await self._leases.list_held("p")
            except DeliveryError:
                return True
            self._listed_at = now
        return any(name.startswith(f"p:{subject_token(instance)}:") for name in self._present)
