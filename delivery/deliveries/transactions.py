"""Transactions: commit state, events and deliveries together, and send wake-ups afterwards."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Protocol

from delivery.background import log_errors
from delivery.broker.port import WakeUps, WorkQueue
from delivery.database.engine import Connection, Database
from delivery.deliveries import immediate, store
from delivery.deliveries.immediate import DeliveryClaims, ImmediateWork
from delivery.deliveries.router import QUEUES, Router
from delivery.deliveries.store import NewDelivery
from delivery.events import outbox
from delivery.events.event import Event
from delivery.events.relay import Relay


class Transaction:
    """An open transaction: change state on `connection`, emit events, and request wake-ups."""

    def __init__(self, connection: Connection, works: list[ImmediateWork] | None = None) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.wakes: dict[tuple[WorkQueue, str], str] = {}
        self.first_works: dict[tuple[WorkQueue, str], object] = {}
        self.timers: dict[tuple[WorkQueue, str], tuple[datetime, str]] = {}
        self.actions: list[Callable[[], None]] = []
        self.works: list[ImmediateWork] = [] if works is None else works

    def emit(self, *events: Event) -> None:
        """Record events with this transaction; they are numbered when it is committed."""
        self.events += events

    def wake(self, queue: WorkQueue, key: str, *, account: str, first: object = None) -> None:
        """Wake the worker of a key of `account` after the commit.

        `first`: what the worker would find first, if this transaction knows it.
        """
        self.wakes[queue, key] = account
        self.first_works[queue, key] = first

    def wake_at(self, queue: WorkQueue, key: str, moment: datetime, *, account: str) -> None:
        """Wake the worker of a key of `account` at a moment, if the transaction is committed."""
        self.timers[queue, key] = moment, account

    def after_commit(self, action: Callable[[], None]) -> None:
        """Call a function that neither waits nor raises once the transaction is committed."""
        self.actions.append(action)


class TurnClaims(Protocol):
    """Claims the next turn of a conversation."""

    @abstractmethod
    async def claim(
        self, tx: Transaction, conversation: str, *, account: str, first: object = None
    ) -> ImmediateWork | None:
        """Claim a turn, emit its events, and return its work; None: a wake-up is needed.

        `first`: the next turn, if the transaction knows it.
        """


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
        self._turn_claims: TurnClaims | None = None
        self._delivery_claims: dict[WorkQueue, DeliveryClaims] = {}
        self._pending: asyncio.Queue[tuple[WorkQueue, str, datetime | None, str] | None] = asyncio.Queue()

    def claim_turns(self, claims: TurnClaims) -> None:
        """Claim turns in the transactions that wake their conversations, where there is a place."""
        self._turn_claims = claims

    def claim_deliveries(self, queue: WorkQueue, claims: DeliveryClaims) -> None:
        """Claim deliveries of a queue in the transactions that create them, where there is a place."""
        self._delivery_claims[queue] = claims

    @asynccontextmanager
    async def begin(self, step: str, *, urgent: bool = False) -> AsyncIterator[Transaction]:
        """Open a transaction: all of it is committed, or none.

        `step` names the fault points `<step>.before_commit` and `<step>.after_commit`. `urgent`: see
        `Database.begin`.
        """
        works: list[ImmediateWork] = []
        try:
            async with self.database.begin(urgent=urgent) as connection:
                tx = Transaction(connection, works)
                yield tx
                numbered = await self._record(tx)
                self._reach(step, works, "before_commit")
        except BaseException:
            for work in works:
                work.release()
            raise
        self._reach(step, works, "after_commit")
        self._after_commit(tx, numbered)

    def _reach(self, step: str, works: Sequence[ImmediateWork], moment: str) -> None:
        """Call the fault points of a transaction and of what it has claimed."""
        for name in (step, *(work.step for work in works)):
            self._checkpoint(f"{name}.{moment}")

    def _after_commit(self, tx: Transaction, numbered: list[Event]) -> None:
        self._relay.enqueue(numbered)
        for work in tx.works:
            work.start()
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
        await self._claim_turns(tx)
        by_conversation: dict[str, list[Event]] = defaultdict(list)
        for event in tx.events:
            by_conversation[event.conversation].append(event.truncated(self._full_text_url(event)))
        recorded = await outbox.record(tx.connection, by_conversation)
        for conversation, numbered in recorded.items():
            await self._create(tx, await self._router.plan(tx.connection, conversation, numbered))
        return [event for numbered in recorded.values() for event in numbered.events]

    async def _claim_turns(self, tx: Transaction) -> None:
        """Claim the turns of the conversations to wake, if this process can run them now."""
        if self._turn_claims is None:
            return
        for (queue, key), account in list(tx.wakes.items()):
            if queue is WorkQueue.TURN:
                first = tx.first_works[queue, key]
                work = await self._turn_claims.claim(tx, key, account=account, first=first)
                if work is not None:
                    del tx.wakes[queue, key]
                    tx.works.append(work)

    async def _create(self, tx: Transaction, planned: Sequence[NewDelivery]) -> None:
        """Insert deliveries, claimed where this process can send them now; the others wake a worker."""
        claimed: dict[str, ImmediateWork] = {}
        for queue, claims in self._delivery_claims.items():
            of_queue = [one for one in planned if QUEUES[one.kind] is queue]
            found = await immediate.claim_first(claims, tx.connection, of_queue)
            tx.works += found.values()
            claimed |= found
        pending = [one for one in planned if one.id not in claimed]
        await store.create(tx.connection, pending)
        tx.wakes |= {(QUEUES[one.kind], one.destination): one.account for one in pending}

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
