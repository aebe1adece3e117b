"""The leases of work among replicas: one for each shard of conversations or destinations.

Each shard belongs to one of the replicas that do the work (rendezvous hashing), which acquires its lease. A
replica announces itself by a lease, which is the session of its shards' leases: only the session is renewed
often. A shard that moves is released at once. Work in progress there gets leases of its own first, and the
next holder does not begin it while they are held. The fences in SQL apply as without shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from delivery.background import log_errors, wait_for_any
from delivery.broker.port import Lease, Leases, LocalLease, WorkQueue
from delivery.errors import DeliveryError, LeaseBusy, LeaseLost
from delivery.events.sharding import SHARDS, work_shard
from gateway.infra.replica_shares import ReplicaShares
from gateway.infra.work_leases import WorkLease

log = structlog.get_logger(__name__)

SHARD_TTL = 600.0
"""Seconds until the lease of a shard expires by itself; it is lost with the announcement of its replica."""

_RETRY_SECONDS = 0.3
_GATHER_SECONDS = 0.05

FindWork = Callable[[frozenset[int]], Awaitable[None]]
"""Wakes all unfinished work of some shards, which it reads from SQL."""

Receive = Callable[[Collection[WorkQueue], int], AbstractAsyncContextManager[None]]
"""Receives the wake-ups of some queues for a shard while its block is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedWork:
    """A kind of work: its queues, and the prefixes of its leases' names."""

    queues: frozenset[WorkQueue]
    key: str
    """Of the leases of single pieces of work."""
    shard: str
    """Of the leases of shards."""
    replica: str
    """Of the leases by which replicas announce that they do this work."""


TURN_SHARDS = ShardedWork(queues=frozenset({WorkQueue.TURN}), key="t", shard="ts", replica="tw")
DELIVERY_SHARDS = ShardedWork(
    queues=frozenset({WorkQueue.DELIVER, WorkQueue.HOOK}), key="d", shard="ds", replica="dw"
)


@dataclass(slots=True, kw_only=True)
class _HeldShard:
    """A held shard; `kept_by_last_holder` has the leases of work that its last holder continues."""

    lease: Lease
    kept_by_last_holder: set[str]
    release_requested: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def may_begin_work(self) -> bool:
        """Whether new work of the shard may begin here."""
        return not self.release_requested.is_set()


class ShardLeases(Leases):
    """Leases of the work in the shards that this replica holds; work of other shards is busy.

    `leases` hold work that outlives a shard, `shard_leases` the shards. `replica` names this process.
    """

    def __init__(
        self,
        work: ShardedWork,
        leases: Leases,
        shard_leases: Leases,
        *,
        receive: Receive,
        replica: str,
        ttl: float,
    ) -> None:
        self._kind = work
        self._leases = leases
        self._shard_leases = shard_leases
        self._receive = receive
        self._ttl = ttl
        self._shares = ReplicaShares(shard_leases, kind=work.replica, replica=replica, ttl=ttl)
        self._held: dict[int, _HeldShard] = {}
        self._holding: dict[int, asyncio.Task[None]] = {}
        self._working: dict[str, WorkLease] = {}
        self._to_search: set[int] = set()
        self._acquired = asyncio.Event()
        self._look_again = asyncio.Event()

    @property
    def held(self) -> frozenset[int]:
        """The shards of which this replica does the work now."""
        return frozenset(number for number, shard in self._held.items() if shard.may_begin_work)

    @asynccontextmanager
    async def acquire(
        self,
        name: str,
        *,
        ttl: float = 6.0,  # noqa: ARG002 - that of the shard
        session: Lease | None = None,  # noqa: ARG002 - that of the shard
    ) -> AsyncIterator[Lease]:
        """Acquire the lease of a conversation or a destination, without the broker.

        Raises LeaseBusy if another replica holds its shard or still works on it.
        """
        shard = self._held.get(_shard_of(name))
        if shard is None or not shard.may_begin_work:
            raise LeaseBusy(f"another replica holds the shard of {name}")
        if name in self._working:
            raise LeaseBusy(f"the lease {name} is held by this process")
        work = self._begin(name, shard)
        try:
            await self._ensure_free(name, shard)
            work.ensure_held()
            yield work
        finally:
            work.release()

    def acquire_locally(self, name: str) -> LocalLease | None:
        """Acquire the lease of a conversation or a destination, without the broker.

        None if another replica may hold its shard, or may still work on it.
        """
        shard = self._held.get(_shard_of(name))
        if shard is None or not shard.may_begin_work:
            return None
        if name in shard.kept_by_last_holder or name in self._working:
            return None
        work = self._begin(name, shard)
        try:
            work.ensure_held()
        except LeaseLost:
            work.release()
            return None
        return work

    def _begin(self, name: str, shard: _HeldShard) -> WorkLease:
        work = WorkLease(name, shard.lease, partial(self._working.pop, name))
        self._working[name] = work
        return work

    async def _ensure_free(self, name: str, shard: _HeldShard) -> None:
        """Raise LeaseBusy while the last holder of a shard goes on with this work."""
        if name in shard.kept_by_last_holder:
            if await self._leases.is_held(name):
                raise LeaseBusy(f"the last holder of the shard of {name} still works on it")
            shard.kept_by_last_holder.discard(name)

    def watch(self, name: str) -> AbstractContextManager[asyncio.Event]:
        """Watch a lease of its own, of work that outlives its shard."""
        return self._leases.watch(name)

    async def is_held(self, name: str) -> bool:
        """Return whether this replica, or work that outlives its shard, holds a lease."""
        return name in self._working or await self._leases.is_held(name)

    async def list_held(self, kind: str, *, after: Lease | None = None) -> frozenset[str]:
        """Return the leases of this replica, and those of work that outlives its shard."""
        own = frozenset(name for name in self._working if name.startswith(f"{kind}:"))
        return own | await self._leases.list_held(kind, after=after)

    async def run(self, stop: asyncio.Event, find_work: FindWork) -> None:
        """Hold this replica's share of the shards until `stop`; then let running work end without them."""
        gone = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._shares.run(gone))
            searching = group.create_task(self._find_work(find_work))
            try:
                await self._follow_shares(group, stop)
                await self._release_all()
            finally:
                gone.set()
                searching.cancel()

    async def _follow_shares(self, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        while not stop.is_set():
            changed = self._shares.next_change()
            self._look_again.clear()
            self._apply_shares(group)
            await wait_for_any(stop, changed, self._look_again)

    def _apply_shares(self, group: asyncio.TaskGroup) -> None:
        """Begin to acquire the shards that belong to this replica, and release those that do not."""
        session = self._shares.lease
        for number in range(SHARDS):
            belongs = self._shares.owns(f"shard:{number}")
            if not belongs and number in self._held:
                self._held[number].release_requested.set()
            elif belongs and session is not None and number not in self._holding:
                self._holding[number] = group.create_task(self._hold(group, number, session))

    async def _hold(self, group: asyncio.TaskGroup, number: int, session: Lease) -> None:
        """Hold a shard until it is released or lost; after a failure wait a little."""
        try:
            await self._hold_once(group, number, session)
        except DeliveryError as error:  # mostly LeaseBusy: its last holder has not released it yet
            log.debug("shard.not_acquired", kind=self._kind.shard, shard=number, error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)
        except Exception:  # the outermost loop of a shard: it must be acquired again
            log.exception("shard.failed", kind=self._kind.shard, shard=number)
            await asyncio.sleep(_RETRY_SECONDS)
        finally:
            del self._holding[number]
            self._look_again.set()

    async def _hold_once(self, group: asyncio.TaskGroup, number: int, session: Lease) -> None:
        name = f"{self._kind.shard}:{number}"
        async with (
            self._shard_leases.acquire(name, ttl=SHARD_TTL, session=session) as lease,
            self._receive(self._kind.queues, number),
        ):
            left = await self._leases.list_held(self._kind.key, after=lease)
            shard = _HeldShard(
                lease=lease, kept_by_last_holder={one for one in left if _shard_of(one) == number}
            )
            self._held[number] = shard
            if not self._shares.owns(f"shard:{number}"):  # a replica has joined while this was acquired
                shard.release_requested.set()
            self._to_search.add(number)
            self._acquired.set()
            try:
                await self._wait_until_over(group, number, shard)
            finally:
                del self._held[number]

    async def _wait_until_over(self, group: asyncio.TaskGroup, number: int, shard: _HeldShard) -> None:
        lost = asyncio.Event()
        unwatch = shard.lease.on_lost(lost.set)
        try:
            await wait_for_any(shard.release_requested, lost)
        finally:
            unwatch()
        if not lost.is_set():
            await self._lease_running_work(group, number, shard.lease)

    async def _lease_running_work(self, group: asyncio.TaskGroup, number: int, shard_lease: Lease) -> None:
        """Give the work in progress leases of its own; return when it has them or has ended."""
        running = [work for name, work in self._working.items() if _shard_of(name) == number]
        for work in running:
            group.create_task(self._lease_until_ended(work, shard_lease))
        for work in running:
            await wait_for_any(work.changed, work.ended)

    async def _lease_until_ended(self, work: WorkLease, shard_lease: Lease) -> None:
        """Hold a lease for one piece of work until it ends, whoever holds its shard."""
        while not (work.ended.is_set() or work.changed.is_set()):
            with log_errors("shards.lease_work", lease=work.name), suppress(DeliveryError):  # tried again
                async with self._leases.acquire(work.name, ttl=self._ttl) as lease:
                    shard_lease.ensure_held()  # until now, so nobody else could begin this work
                    work.replace_backing(lease)
                    await work.ended.wait()
            await wait_for_any(work.changed, work.ended, timeout=_RETRY_SECONDS)

    async def _release_all(self) -> None:
        """Release all shards, and stop acquiring them."""
        for number, task in self._holding.items():
            if number in self._held:
                self._held[number].release_requested.set()
            else:
                task.cancel()
        if self._holding:
            await asyncio.wait(self._holding.values())

    async def _find_work(self, find_work: FindWork) -> None:
        """Wake the unfinished work of the shards that were acquired; those acquired together at once."""
        while True:
            await self._acquired.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._acquired.clear()
            shards, self._to_search = frozenset(self._to_search), set()
            with log_errors("shards.find_work"):  # the janitor finds it as well
                await find_work(shards)


def _shard_of(name: str) -> int:
    """Return the shard of a lease's conversation or destination."""
    return work_shard(name.partition(":")[2])
