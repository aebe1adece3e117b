"""Transactions: commit state, events and deliveries together, and send wake-ups afterwards."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

from delivery.background import log_errors
from delivery.broker.port import WakeUps, WorkQueue
from delivery.database.engine import Connection, Database
from delivery.deliveries.router import Router
from delivery.events import outbox
from delivery.events.event import Event
from delivery.events.relay import Relay


class Transaction:
    """An open transaction: change state on `connection`, emit events, and request wake-ups."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.wakes: dict[tuple[WorkQueue, str], str] = {}
        self.timers: dict[tuple[WorkQueue, str], tuple[datetime, str]] = {}
        self.actions: list[Callable[[], None]] = []

    def emit(self, *events: Event) -> None:
        """Record events with this transaction; they are numbered when it is committed."""
        self.events += events

    def wake(self, queue: WorkQueue, key: str, *, account: str) -> None:
        """Wake the worker of a key of `account` after the commit."""
        self.wakes[queue, key] = account

    def wake_at(self, queue: WorkQueue, key: str, moment: datetime, *, account: str) -> None:
        """Wake the worker of a key of `account` at a moment, if the transaction is committed."""
        self.timers[queue, key] = moment, account

    def after_commit(self, action: Callable[[], None]) -> None:
        """Call a function that neither waits nor raises once the transaction is committed."""
        self.actions.append(action)


class Transactions:
    """Opens and commits transactions; `checkpoint` is called with the names of the fault points.

    `full_text_url(event)` returns the URL of an event's full text, for texts too long for an event.
    """

    def __init__(
        self,
        database: Database,
        relay: Relay,
        router: Router,
        wake_ups: WakeUps,
        checkpoint: Callable[[str], None],
        *,
        full_text_url: Callable[[Event], str | None] = lambda _event: None,
    ) -> None:
        self.database = database
        self._relay = relay
        self._router = router
        self._wake_ups = wake_ups
        self._checkpoint = checkpoint
        self._full_text_url = full_text_url
        self._pending: asyncio.Queue[tuple[WorkQueue, str, datetime | None, str] | None] = asyncio.Queue()

    @asynccontextmanager
    async def begin(self, step: str, *, urgent: bool = False) -> AsyncIterator[Transaction]:
        """Open a transaction: all of it is committed, or none.

        `step` names the fault points `<step>.before_commit` and `<step>.after_commit`. `urgent`: see
        `Database.begin`.
        """
        async with self.database.begin(urgent=urgent) as connection:
            tx = Transaction(connection)
            yield tx
            numbered = await self._record(tx)
            self._checkpoint(f"{step}.before_commit")
        self._checkpoint(f"{step}.after_commit")
        self._relay.enqueue(numbered)
        for (queue, key), account in tx.wakes.items():
            self.wake_soon(queue, key, account=account)
        for (queue, key), (moment, account) in tx.timers.items():
            self.wake_soon(queue, key, moment, account=account)
        for action in tx.actions:
            action()

    def wake_soon(self, queue: WorkQueue, key: str, moment: datetime | None = None, *, account: str) -> None:
        """Queue a wake-up of a key of `account`, for `moment` or for now; never blocks on the broker."""
        self._pending.put_nowait((queue, key, moment, account))

    async def _record(self, tx: Transaction) -> list[Event]:
        by_conversation: dict[str, list[Event]] = defaultdict(list)
        for event in tx.events:
            by_conversation[event.conversation].append(event.truncated(self._full_text_url(event)))
        recorded = await outbox.record(tx.connection, by_conversation)
        for conversation, numbered in recorded.items():
            tx.wakes |= await self._router.plan(tx.connection, conversation, numbered)
        return [event for numbered in recorded.values() for event in numbered.events]

    async def run(self, stop: asyncio.Event) -> None:
        """Send the queued wake-ups until `stop`."""
        ending = asyncio.create_task(self._end_with(stop))
        try:
            while (wake_up := await self._pending.get()) is not None and not stop.is_set():
                await self._send(*wake_up)
        finally:
            ending.cancel()

    async def _end_with(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._pending.put_nowait(None)

    async def _send(self, queue: WorkQueue, key: str, moment: datetime | None, account: str) -> None:
        with log_errors("wake_ups", key=key):  # a wake-up is a hint; the janitor repeats it
            if moment is None:
                await self._wake_ups.publish(queue, key, account=account)
            else:
                await self._wake_ups.publish_at(queue, key, moment, account=account)
