"""Wake the unfinished work of shards that this replica has just acquired."""

from __future__ import annotations

from datetime import timedelta

from delivery.broker.port import SendWakeUp, WorkQueue
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.deliveries import store
from delivery.deliveries.route import RouteKind
from delivery.deliveries.router import QUEUES
from delivery.events.sharding import work_shard
from gateway.store.turns import turn_queue


async def wake_turns(database: Database, wake: SendWakeUp, shards: frozenset[int]) -> None:
    """Wake the conversations of some shards that have a turn to run; raises DatabaseUnavailable."""
    async with database.read() as connection:
        busy = await turn_queue.list_conversations_with_work(connection)
    for conversation, account in busy:
        if work_shard(conversation) in shards:
            wake(WorkQueue.TURN, conversation, account=account)


async def wake_deliveries(database: Database, wake: SendWakeUp, shards: frozenset[int]) -> None:
    """Wake the destinations of some shards that have due deliveries; raises DatabaseUnavailable."""
    now = utc_now()
    async with database.read() as connection:
        due = await store.due_destinations(connection, now=now, before=now + timedelta(seconds=1))
    for kind, destination, account in due:
        if work_shard(destination) in shards:
            wake(QUEUES[RouteKind(kind)], destination, account=account)
