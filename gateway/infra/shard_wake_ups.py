"""Wake-ups among replicas: each goes to the replica that holds the shard of its key.

They are sent without storing them: who acquires a shard looks up its unfinished work in SQL, and the janitor
repeats what is lost. Timers are kept by the broker, which gives each to any replica; that one passes it on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial

from nats.aio.msg import Msg

from delivery.background import log_errors
from delivery.broker.connection import NatsConnection
from delivery.broker.port import WakeUp, WakeUps, WorkQueue
from delivery.broker.wake_ups import MemoryWakeUps, decode_wake_up, encode_wake_up
from delivery.events.sharding import work_shard

_TIMERS_AT_ONCE = 64


class ShardWakeUps(WakeUps):
    """Wake-ups addressed to shards; `timers` are the broker's own."""

    def __init__(self, nats: NatsConnection, timers: WakeUps) -> None:
        self._nats = nats
        self._timers = timers
        self._received = MemoryWakeUps()
        self._here: set[tuple[WorkQueue, int]] = set()

    async def publish(self, queue: WorkQueue, key: str, *, account: str) -> None:
        """Send a wake-up to the holder of the key's shard; to nobody if the shard has none."""
        shard = work_shard(key)
        if (queue, shard) in self._here:
            await self._received.publish(queue, key, account=account)
        else:
            await self._nats.publish_nowait(_subject(queue, shard), encode_wake_up(account, key))

    async def publish_at(self, queue: WorkQueue, key: str, moment: datetime, *, account: str) -> None:
        """Let the broker send a wake-up at a moment."""
        await self._timers.publish_at(queue, key, moment, account=account)

    @asynccontextmanager
    async def receive(self, queues: Collection[WorkQueue], shard: int) -> AsyncIterator[None]:
        """Receive the wake-ups of a shard until the block ends; raises BrokerUnreachable."""
        names = {(queue, shard) for queue in queues}
        async with AsyncExitStack() as stack:
            for queue in queues:
                await stack.enter_async_context(
                    self._nats.subscribe(_subject(queue, shard), partial(self._receive, queue))
                )
            self._here |= names
            try:
                yield
            finally:
                self._here -= names

    async def _receive(self, queue: WorkQueue, message: Msg) -> None:
        account, key = decode_wake_up(message.data)
        await self._received.publish(queue, key, account=account)

    async def subscribe(
        self, queue: WorkQueue, *, at_most: int, stop: asyncio.Event
    ) -> AsyncIterator[WakeUp]:
        """Yield the wake-ups of the shards that this process holds, until `stop`."""
        passing_on = asyncio.create_task(self._pass_on_timers(queue, stop))
        try:
            async for wake_up in self._received.subscribe(queue, at_most=at_most, stop=stop):
                yield wake_up
        finally:
            passing_on.cancel()
            await asyncio.wait({passing_on})

    async def _pass_on_timers(self, queue: WorkQueue, stop: asyncio.Event) -> None:
        """Send the broker's timers to the holders of their shards."""
        async for wake_up in self._timers.subscribe(queue, at_most=_TIMERS_AT_ONCE, stop=stop):
            with log_errors("wake_ups.pass_on", key=wake_up.key):
                await wake_up.ack()
                await self.publish(queue, wake_up.key, account=wake_up.account)


def _subject(queue: WorkQueue, shard: int) -> str:
    return f"wake.{queue}.{shard}"
