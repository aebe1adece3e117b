"""The relay: publishes recorded events to the durable stream, in the order of each conversation."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from delivery.background import log_errors
from delivery.database.engine import Connection, Database
from delivery.errors import AppendConflict, DeliveryError
from delivery.events import outbox
from delivery.events.event import Event
from delivery.events.outbox import Backlog
from delivery.events.port import EventStream
from delivery.events.public_subjects import Announce
from delivery.fair_gate import current_account
from delivery.fair_queue import FairQueue
from delivery.fair_scheduler import PoolSize

log = structlog.get_logger(__name__)

MARK_SECONDS = 1.0
"""Seconds between commits of the published positions; after a crash the stream's own tail decides."""

IsPresent = Callable[[Connection, str], Awaitable[bool]]
"""Returns whether an epoch of the stream has not ended; then it does not end before the transaction does."""

MAX_CACHED = 10_000
"""The number of conversations whose position is cached in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Position:
    """The last published lasting event of one conversation, in one epoch of the stream."""

    seq: int
    n: int
    account: str
    epoch: str


def _take_consecutive(pending: dict[int, Event], after: int) -> list[Event]:
    """Remove and return the events that follow `after` without a hole; drop those at or before it."""
    for n in [n for n in pending if n <= after]:
        del pending[n]
    run: list[Event] = []
    while event := pending.pop(after + 1 + len(run), None):
        run.append(event)
    return run


class _PublishedSeqs:
    """The seqs of the last events that this relay appended; `wait_for` waits for one."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()
        self._changed = asyncio.Condition()
        self._waiting = 0

    async def set(self, event_id: str, seq: int) -> None:
        """Store the seq of an event."""
        self._known[event_id] = seq
        if len(self._known) > MAX_CACHED:
            self._known.popitem(last=False)
        if self._waiting:
            async with self._changed:
                self._changed.notify_all()

    def get(self, event_id: str) -> int | None:
        """Return the seq of an event, or None if this relay has not appended it lately."""
        return self._known.get(event_id)

    async def wait_for(self, event_id: str, timeout: float) -> int | None:
        """Return the seq of an event, waiting up to `timeout` seconds; None: not appended by this relay."""
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: event_id in self._known)
        except TimeoutError:
            return None
        finally:
            self._waiting -= 1
        return self._known[event_id]


class Relay:
    """Appends by compare-and-set on the conversation's tail, so that any number of relays agree.

    `announce` receives each event that this relay appended. Positions of an epoch that has ended, here or on
    another replica, are not stored: their events may be lost, and are published again. `is_present` decides.
    """

    def __init__(
        self,
        database: Database,
        stream: EventStream,
        checkpoint: Callable[[str], None],
        *,
        workers: int = 32,
        announce: Announce | None = None,
        is_present: IsPresent | None = None,
    ) -> None:
        self._database = database
        self._stream = stream
        self._checkpoint = checkpoint
        self._workers = workers
        self._announce = announce
        self._is_present = is_present
        self._dirty = FairQueue[str](PoolSize(places=workers))
        self._positions: dict[str, _Position] = {}
        self._pending: dict[str, dict[int, Event]] = defaultdict(dict)
        self._queued: set[str] = set()
        self._to_read: set[str] = set()
        self._marks: dict[str, _Position] = {}
        self._seqs = _PublishedSeqs()

    def enqueue(self, events: Iterable[Event]) -> None:
        """Queue committed, numbered events of the current account for publishing; returns at once."""
        for event in events:
            self._pending[event.conversation][event.n or 0] = event
            self._queue(event.conversation, current_account())

    async def get_seq(self, event: Event, *, timeout: float) -> int | None:
        """Return an event's seq once it is published, waiting up to `timeout` seconds; None after that.

        An event without a number (a webhook's test) is in no stream: the result is None at once.
        """
        if event.n is None:
            return None
        seq = self._seqs.get(event.id)
        if seq is None and not await self._is_published(event):
            seq = await self._seqs.wait_for(event.id, timeout)
        return seq if seq is not None else await self._find_in_stream(event)

    async def _is_published(self, event: Event) -> bool:
        """Return whether an event is known to be in the stream, by this relay or by the database."""
        position, number = self._cached_position(event.conversation), event.n or 0
        if position is not None:
            return number <= position.n
        async with self._database.read() as connection:
            return number <= await outbox.published_n(connection, event.conversation)

    async def _find_in_stream(self, event: Event) -> int | None:
        """Return the seq of an event that another relay, or this one before a restart, has appended."""
        encoded_id, after = event.id.encode(), 0
        account = await self._account_of(event.conversation)
        try:
            while batch := await self._stream.read(
                event.conversation, account=account, after=after, limit=256, transient=False
            ):
                for stored in batch:
                    if encoded_id in stored.raw and stored.event.id == event.id:
                        return stored.seq
                after = batch[-1].seq
        except DeliveryError as error:
            log.debug("event.seq_not_found", event_id=event.id, error=str(error))
        return None

    async def _account_of(self, conversation: str) -> str:
        if (position := self._positions.get(conversation)) is not None:
            return position.account
        async with self._database.read() as connection:
            return await outbox.account_of(connection, conversation)

    def _read_soon(self, conversation: str, account: str) -> None:
        """Read a conversation's outbox soon, in addition to the queued events."""
        self._to_read.add(conversation)
        self._queue(conversation, account)

    def catch_up(self, backlog: Backlog) -> None:
        """Publish a backlog; if this relay has published it already, only mark it as published."""
        position = self._cached_position(backlog.conversation)
        if position is None or position.n < backlog.last_n:
            self._read_soon(backlog.conversation, backlog.account)
        else:
            self._marks.setdefault(backlog.conversation, position)

    def _queue(self, conversation: str, account: str) -> None:
        if conversation not in self._queued:
            self._queued.add(conversation)
            self._dirty.put(account, conversation)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop`, then publish the queued events for as long as the broker answers."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())
            marker = group.create_task(self._mark_regularly(stop))
            await stop.wait()
            self._dirty.close()
            await marker
        await self._mark()

    async def _work(self) -> None:
        while await self._publish_next():
            pass

    async def _publish_next(self) -> bool:
        """Publish the events of one conversation; return False when the relay has stopped."""
        async with self._dirty.take() as entry:
            if entry is None:
                return False
            account, conversation = entry
            await self._try(conversation)
            self._queued.discard(conversation)
            if conversation in self._pending or conversation in self._to_read:
                self._queue(conversation, account)
            return True

    async def _try(self, conversation: str) -> None:
        with log_errors("relay", conversation=conversation):
            try:
                await self._flush(conversation)
            except Exception:
                self._positions.pop(conversation, None)
                raise

    async def _flush(self, conversation: str) -> None:
        for tries in range(20):
            position = self._cached_position(conversation)
            if position is None:
                position = await self._load_position(conversation, from_stream=tries > 0)
            if position is None:
                self._forget(conversation)
                return
            try:
                await self._append(conversation, position)
            except AppendConflict:
                self._positions.pop(conversation, None)
                self._to_read.add(conversation)
                continue
            return
        self._to_read.add(conversation)

    def _cached_position(self, conversation: str) -> _Position | None:
        """Return the position in memory, unless it is of an epoch that has ended: that event may be lost."""
        position = self._positions.get(conversation)
        return position if position is not None and position.epoch == self._stream.epoch else None

    def _forget(self, conversation: str) -> None:
        """Drop what is queued of a deleted conversation."""
        self._pending.pop(conversation, None)
        self._to_read.discard(conversation)

    async def _load_position(self, conversation: str, *, from_stream: bool) -> _Position | None:
        """Return the position that the database has; after a conflict, the one that the stream has.

        None: the conversation was deleted.

        The stream's tail costs a read by the leader of its servers. The compare-and-set of the next append
        shows whether the position is right.
        """
        epoch = self._stream.epoch
        async with self._database.read() as connection:
            stored = await outbox.last_position(connection, conversation)
        if stored is None:
            return None
        published_n, seq, account = stored
        position = _Position(seq=seq, n=published_n, account=account, epoch=epoch)
        if from_stream:
            tail = await self._stream.tail(conversation, account=account)
            seq, n = (tail.seq, tail.n) if tail else (0, published_n)
            position = replace(position, seq=seq, n=n)
        if len(self._positions) >= MAX_CACHED:
            self._positions.pop(next(iter(self._positions)))
        self._positions[conversation] = position
        return position

    async def _append(self, conversation: str, position: _Position) -> None:
        queued = self._pending.pop(conversation, {})
        unread = conversation in self._to_read
        self._to_read.discard(conversation)
        while True:
            events = _take_consecutive(queued, position.n)
            if not events and (unread or any(n > position.n for n in queued)):
                events, unread = await self._list_unpublished(conversation, position), False
            if not events:
                return
            position = await self._append_all(conversation, position, events)

    async def _append_all(self, conversation: str, position: _Position, events: list[Event]) -> _Position:
        for event in events:
            self._checkpoint("relay.before_append")
            seq = await self._stream.append(event, account=position.account, expected=position.seq)
            self._checkpoint("relay.after_append")
            position = replace(position, n=event.n or 0, seq=seq)
            self._positions[conversation] = self._marks[conversation] = position
            await self._seqs.set(event.id, position.seq)
            if self._announce is not None:
                await self._announce(position.account, event, position.seq)
        return position

    async def _list_unpublished(self, conversation: str, position: _Position) -> list[Event]:
        async with self._database.read() as connection:
            return await outbox.list_unpublished(connection, conversation, after=position.n)

    async def _mark_regularly(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                async with asyncio.timeout(MARK_SECONDS):
                    await stop.wait()
            except TimeoutError:
                await self._mark()

    async def _mark(self) -> None:
        marks, self._marks = self._marks, {}
        epoch = self._stream.epoch
        valid = [(key, one.n, one.seq) for key, one in marks.items() if one.epoch == epoch]
        if not valid:
            return
        with log_errors("relay.mark"):  # a mark is a hint; the stream's tail decides
            async with self._database.begin() as connection:
                if self._is_present is None or await self._is_present(connection, epoch):
                    await outbox.mark_published(connection, valid)
