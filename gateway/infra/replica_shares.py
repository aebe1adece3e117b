"""The share of some work that belongs to this replica, among all replicas that do such work.

Every replica announces itself by a lease, and each piece of work belongs to the replica that ranks first for
it (rendezvous hashing). A replica that joins or leaves therefore moves its own share only. A share excludes
no one: leases and fences still decide who works, and a share says who should begin.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from contextlib import suppress

import structlog

from delivery.background import log_errors
from delivery.broker.port import Lease, Leases
from delivery.errors import DeliveryError

log = structlog.get_logger(__name__)

RECEIVING = "r"
"""The kind of the leases by which replicas announce that they receive for bots."""

MAINTAINING = "w"
"""The kind of the leases by which replicas announce that they do the maintenance."""

POLL_SECONDS = 1.0
_RETRY_SECONDS = 0.2


class ReplicaShares:
    """This replica's share of a kind of work, by name; `replica` is unique among the processes.

    Until the others are known, nothing belongs to this replica.
    """

    def __init__(self, leases: Leases, *, kind: str, replica: str, ttl: float) -> None:
        self._leases = leases
        self._kind = kind
        self._replica = replica
        self._ttl = ttl
        self._replicas: frozenset[str] = frozenset()
        self._changed = asyncio.Event()
        self.lease: Lease | None = None
        """The lease by which this replica is announced; None while it is not."""

    async def run(self, stop: asyncio.Event) -> None:
        """Be one of the replicas that share the work until `stop`, and learn of the others."""
        announcing = asyncio.create_task(self._announce())
        try:
            while not stop.is_set():
                await self._look_up()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await stop.wait()
        finally:
            announcing.cancel()
            await asyncio.wait({announcing})

    async def _announce(self) -> None:
        while True:
            with log_errors("replica_shares.announce"), suppress(DeliveryError):  # the broker is away
                async with self._leases.acquire(f"{self._kind}:{self._replica}", ttl=self._ttl) as lease:
                    self.lease = lease
                    self._report_change()
                    try:
                        await lease.wait_lost()
                    finally:
                        self.lease = None
            await asyncio.sleep(_RETRY_SECONDS)

    async def _look_up(self) -> None:
        with log_errors("replica_shares.look_up"), suppress(DeliveryError):  # the shares stay as they are
            held = await self._leases.list_held(self._kind)
            self._update(frozenset(name.removeprefix(f"{self._kind}:") for name in held) | {self._replica})

    def _update(self, replicas: frozenset[str]) -> None:
        if replicas == self._replicas:
            return
        log.info(
            "replica_shares.changed", kind=self._kind, replicas=len(replicas), before=len(self._replicas)
        )
        self._replicas = replicas
        self._report_change()

    def _report_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def are_known(self) -> bool:
        """Whether this replica has learned of the others."""
        return bool(self._replicas)

    def owns(self, name: str) -> bool:
        """Return whether the work of a name belongs to this replica."""
        return bool(self._replicas) and owner_of(name, self._replicas) == self._replica

    def next_change(self) -> asyncio.Event:
        """Return the event that is set by the next change: one joins or leaves, or this one is announced."""
        return self._changed

    async def wait_to_hand_over(self, name: str, changed: asyncio.Event) -> None:
        """Return when another replica should do the work of a name that this one does.

        `changed` is the next change after this replica decided to do it. If the owner has left the work
        alone, this replica continues until then: an owner that cannot do it would get it again and again.
        """
        while True:
            await changed.wait()
            changed = self._changed
            if not self.owns(name):
                return


def owner_of(name: str, replicas: Iterable[str]) -> str:
    """Return the one of some replicas to which the work of a name belongs: the first by a hash."""
    return max(replicas, key=lambda replica: _rank(replica, name))


def _rank(replica: str, name: str) -> bytes:
    return hashlib.sha256(f"{replica}\x1f{name}".encode()).digest()
