"""How turns and deliveries are shared: by shard among replicas, or not at all in a single process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from delivery.broker.port import Leases, SendWakeUp
from delivery.database.engine import Database
from gateway.infra.backing_services import BackgroundTask, BackingServices
from gateway.infra.shard_leases import DELIVERY_SHARDS, TURN_SHARDS, ShardedWork, ShardLeases
from gateway.infra.shard_wake_ups import ShardWakeUps
from gateway.instrumentation import InstrumentedLeases
from gateway.maintenance.unfinished_work import wake_deliveries, wake_turns

_WakeWork = Callable[[Database, SendWakeUp, frozenset[int]], Awaitable[None]]
_WAKE_WORK: dict[ShardedWork, _WakeWork] = {TURN_SHARDS: wake_turns, DELIVERY_SHARDS: wake_deliveries}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeases:
    """The leases that workers of one kind acquire, and the tasks that they need while the workers run."""

    leases: Leases
    tasks: tuple[BackgroundTask, ...] = ()


def open_worker_leases(backing: BackingServices, work: ShardedWork, wake: SendWakeUp) -> WorkerLeases:
    """Return the leases of a kind of work: those of shards if the broker may have other replicas."""
    wake_ups = backing.wake_ups
    if not isinstance(wake_ups, ShardWakeUps):
        return WorkerLeases(leases=InstrumentedLeases(backing.leases, backing.metrics))
    shards = ShardLeases(
        work,
        backing.leases,
        InstrumentedLeases(backing.leases, backing.metrics),
        receive=wake_ups.receive,
        replica=backing.instance,
        ttl=backing.settings.lease_ttl,
    )
    find_work = partial(_WAKE_WORK[work], backing.database, wake)
    return WorkerLeases(
        leases=InstrumentedLeases(shards, backing.metrics), tasks=(lambda stop: shards.run(stop, find_work),)
    )
