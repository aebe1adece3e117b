"""One door for changes: state, events and deliveries in one transaction, wake-ups after it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

from delivery.broker.port import Queue, Signals
from delivery.database.engine import Connection, Database
from delivery.deliveries.router import Router
from delivery.events import outbox
from delivery.events.event import Event
from delivery.events.relay import Relay


class Entry:
    """A transaction in the making: change state on `connection`, tell what happened, say whom to wake."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.wakes: set[tuple[Queue, str]] = set()
        self.timers: dict[tuple[Queue, str], datetime] = {}

    def tell(self, *events: Event) -> None:
        """Record events with this change; they get their numbers when it is committed."""
        self.events += events

    def wake(self, queue: Queue, key: str) -> None:
        """Wake whoever looks after `key`, once this change is committed."""
        self.wakes.add((queue, key))

    def wake_at(self, queue: Queue, key: str, moment: datetime) -> None:
        """Wake whoever looks after `key` at a moment, once this change is committed."""
        self.timers[queue, key] = moment


class Ledger:
    """Commits entries. `checkpoint` is called around the commit with the names of the fault points.

    `whole(event)` says where all of an event's text stands when it is too long for an event.
    """

    def __init__(
        self,
        database: Database,
        relay: Relay,
        router: Router,
        signals: Signals,
        checkpoint: Callable[[str], None],
        *,
        whole: Callable[[Event], str | None] = lambda _event: None,
    ) -> None:
        self.database = database
        self._relay = relay
        self._router = router
        self._signals = signals
        self._checkpoint = checkpoint
        self._whole = whole
        self._pending: asyncio.Queue[tuple[Queue, str, datetime | None]] = asyncio.Queue()

    @asynccontextmanager
    async def entry(self, step: str, *, urgent: bool = False) -> AsyncIterator[Entry]:
        """Open an entry: everything in it is committed together, or nothing of it happened.

        `step` names the fault points `<step>.before_commit` and `<step>.after_commit`.
        """
        async with self.database.begin(urgent=urgent) as connection:
            entry = Entry(connection)
            yield entry
            numbered = await self._record(entry)
            self._checkpoint(f"{step}.before_commit")
        self._checkpoint(f"{step}.after_commit")
        self._relay.offer(numbered)
        for queue, key in entry.wakes:
            self.signal(queue, key)
        for (queue, key), moment in entry.timers.items():
            self.signal(queue, key, moment)

    def signal(self, queue: Queue, key: str, moment: datetime | None = None) -> None:
        """Send a wake-up soon; a full disk or an absent broker never holds the caller up."""
        self._pending.put_nowait((queue, key, moment))

    async def _record(self, entry: Entry) -> list[Event]:
        told: dict[str, list[Event]] = defaultdict(list)
        for event in entry.events:
            told[event.conversation].append(event.fitted(self._whole(event)))
        numbered: list[Event] = []
        for conversation, events in told.items():
            numbered += await outbox.record(entry.connection, conversation, events)
            entry.wakes |= await self._router.plan(entry.connection, conversation, numbered[-len(events) :])
        return numbered

    async def run(self, stop: asyncio.Event) -> None:
        """Send the wake-ups until stopped."""
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                waiting = asyncio.create_task(self._pending.get())
                await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    waiting.cancel()
                    return
                await self._send(*waiting.result())
        finally:
            stopping.cancel()

    async def _send(self, queue: Queue, key: str, moment: datetime | None) -> None:
        if moment is None:
            await self._signals.wake(queue, key)
        else:
            await self._signals.wake_at(queue, key, moment)
