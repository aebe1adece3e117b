"""Which part of the maintenance this replica does: conversations by shard, deletions of old rows by table.

A replica that is alive and does not work would leave its part undone. So every replica looks at everything
once in `FULL_SECONDS`; work that two replicas do is wasted, never wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from delivery.events.sharding import SHARDS, shard_of
from gateway.infra.backing_services import BackingServices
from gateway.infra.replica_shares import MAINTAINING, ReplicaShares

FULL_SECONDS = 60.0


class WorkShare:
    """The part of one replica; without `shares`, which a single process does not need, all belongs to it."""

    def __init__(
        self, shares: ReplicaShares | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shares = shares
        self._clock = clock
        self._full_at = clock() + FULL_SECONDS

    async def run(self, stop: asyncio.Event) -> None:
        """Take part in the sharing until stopped."""
        if self._shares is not None:
            await self._shares.run(stop)

    def take_shards(self) -> frozenset[int]:
        """Return the shards to look at in this pass: all of them once in FULL_SECONDS."""
        if self._shares is None or not self._shares.are_known or self._clock() >= self._full_at:
            self._full_at = self._clock() + FULL_SECONDS
            return frozenset(range(SHARDS))
        shares = self._shares
        return frozenset(shard for shard in range(SHARDS) if shares.owns(f"shard:{shard}"))

    def has_table(self, table: str) -> bool:
        """Return whether this replica deletes the old rows of a table."""
        return self._shares is None or not self._shares.are_known or self._shares.owns(f"table:{table}")


def is_in(shards: frozenset[int], account: str, key: str) -> bool:
    """Return whether a conversation or a destination of an account is in one of the shards."""
    return shard_of(account, key) in shards


def open_work_share(backing: BackingServices) -> WorkShare:
    """Return the share of this process among the replicas on its NATS; all, if it is alone."""
    if backing.presence is None:
        return WorkShare()
    replica, ttl = backing.presence.instance, backing.settings.lease_ttl
    return WorkShare(ReplicaShares(backing.leases, kind=MAINTAINING, replica=replica, ttl=ttl))
