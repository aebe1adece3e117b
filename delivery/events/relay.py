"""The relay: brings recorded events into the durable stream, each conversation in its own order."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from delivery.database.engine import Database, Unavailable
from delivery.errors import Conflict, DeliveryError
from delivery.events import outbox
from delivery.events.event import Event
from delivery.events.outbox import Backlog
from delivery.events.port import Stream

log = structlog.get_logger(__name__)

MARK_EVERY = 0.25
"""Seconds between commits of how far the stream is; after a crash the stream's own tail is the truth."""

CACHED = 10_000
"""Conversations whose position is kept in memory."""


@dataclass(slots=True)
class _Line:
    """One conversation's position in the stream: its last lasting event."""

    seq: int
    n: int


def _run_of(offered: dict[int, Event], after: int) -> list[Event]:
    """Take the events that follow `after` without a hole, and drop those at or before it."""
    for n in [n for n in offered if n <= after]:
        del offered[n]
    run: list[Event] = []
    while event := offered.pop(after + 1 + len(run), None):
        run.append(event)
    return run


class _Seqs:
    """The positions of the last events appended here; whoever asks early waits."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()
        self._grown = asyncio.Condition()
        self._waiting = 0

    async def put(self, event_id: str, seq: int) -> None:
        """Remember where an event stands."""
        self._known[event_id] = seq
        if len(self._known) > CACHED:
            self._known.popitem(last=False)
        if self._waiting:
            async with self._grown:
                self._grown.notify_all()

    async def find(self, event_id: str, within: float) -> int | None:
        """Return where an event stands, waiting so many seconds; None: not appended here."""
        self._waiting += 1
        try:
            async with asyncio.timeout(within), self._grown:
                await self._grown.wait_for(lambda: event_id in self._known)
        except TimeoutError:
            return None
        finally:
            self._waiting -= 1
        return self._known[event_id]


class Relay:
    """Appends by compare-and-set on the conversation's tail, so that any number of relays agree."""

    def __init__(
        self, database: Database, stream: Stream, checkpoint: Callable[[str], None], *, workers: int = 32
    ) -> None:
        self._database = database
        self._stream = stream
        self._checkpoint = checkpoint
        self._workers = workers
        self._positions: dict[str, _Line] = {}
        self._offered: dict[str, dict[int, Event]] = defaultdict(dict)
        self._dirty: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._unseen: set[str] = set()
        self._marks: dict[str, tuple[int, int]] = {}
        self._seqs = _Seqs()

    def offer(self, events: Iterable[Event]) -> None:
        """Hand over committed, numbered events; returns at once."""
        for event in events:
            self._offered[event.conversation][event.n or 0] = event
            self._queue(event.conversation)

    async def seq_of(self, event: Event, *, within: float) -> int | None:
        """Return an event's seq as soon as it is appended by this relay; None when it is nowhere in time.

        What no conversation has numbered (a webhook's test) is in no stream, and not waited for.
        """
        if event.n is None:
            return None
        seq = await self._seqs.find(event.id, within)
        return seq if seq is not None else await self._sought(event)

    async def _sought(self, event: Event) -> int | None:
        """Return the seq of an event that another relay appended, or this one before it was restarted."""
        mark, after = event.id.encode(), 0
        try:
            while batch := await self._stream.read(
                event.conversation, after=after, limit=256, transient=False
            ):
                for found in batch:
                    if mark in found.raw and found.event.id == event.id:
                        return found.seq
                after = batch[-1].seq
        except DeliveryError as error:
            log.debug("seq.unknown", event_id=event.id, error=str(error))
        return None

    def nudge(self, conversation: str) -> None:
        """Look at a conversation's outbox soon, whatever was offered."""
        self._unseen.add(conversation)
        self._queue(conversation)

    def catch_up(self, backlog: Backlog) -> None:
        """Bring what is behind into the stream; what this relay knows to be there is only marked so."""
        line = self._positions.get(backlog.conversation)
        if line is None or line.n < backlog.last_n:
            self.nudge(backlog.conversation)
        else:
            self._marks.setdefault(backlog.conversation, (line.n, line.seq))

    def _queue(self, conversation: str) -> None:
        if conversation not in self._queued:
            self._queued.add(conversation)
            self._dirty.put_nowait(conversation)

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until stopped, then finish what was offered while the broker answers."""
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self._work()) for _ in range(self._workers)]
            marker = group.create_task(self._mark_regularly(stop))
            await stop.wait()
            for _ in workers:
                self._dirty.put_nowait("")
            await marker
        await self._mark()

    async def _work(self) -> None:
        while conversation := await self._dirty.get():
            await self._try(conversation)
            self._queued.discard(conversation)
            if conversation in self._offered or conversation in self._unseen:
                self._queue(conversation)

    async def _try(self, conversation: str) -> None:
        try:
            await self._flush(conversation)
        except (DeliveryError, Unavailable, OSError) as error:
            self._positions.pop(conversation, None)
            log.warning("relay.waits", conversation=conversation, error=str(error))
        except Exception:  # the outermost loop of a worker: one bad row must not stop the others
            self._positions.pop(conversation, None)
            log.exception("relay.failed", conversation=conversation)

    async def _flush(self, conversation: str) -> None:
        for _ in range(20):
            line = self._positions.get(conversation) or await self._find(conversation)
            try:
                await self._append(conversation, line)
            except Conflict:
                self._positions.pop(conversation, None)
                self._unseen.add(conversation)
                continue
            return
        self.nudge(conversation)

    async def _find(self, conversation: str) -> _Line:
        tail = await self._stream.tail(conversation)
        async with self._database.read() as connection:
            relayed = await outbox.relayed_n(connection, conversation)
        line = _Line(seq=tail.seq, n=tail.n) if tail else _Line(seq=0, n=relayed)
        if len(self._positions) >= CACHED:
            self._positions.pop(next(iter(self._positions)))
        self._positions[conversation] = line
        return line

    async def _append(self, conversation: str, line: _Line) -> None:
        offered = self._offered.pop(conversation, {})
        unseen = conversation in self._unseen
        self._unseen.discard(conversation)
        while True:
            events = _run_of(offered, line.n)
            if not events and (unseen or any(n > line.n for n in offered)):
                events, unseen = await self._unsent(conversation, line), False
            if not events:
                return
            await self._append_all(conversation, line, events)

    async def _append_all(self, conversation: str, line: _Line, events: list[Event]) -> None:
        for event in events:
            self._checkpoint("relay.before_append")
            line.seq = await self._stream.append(event, expected=line.seq)
            self._checkpoint("relay.after_append")
            line.n = event.n or 0
            self._marks[conversation] = (line.n, line.seq)
            await self._seqs.put(event.id, line.seq)

    async def _unsent(self, conversation: str, line: _Line) -> list[Event]:
        async with self._database.read() as connection:
            return await outbox.unsent(connection, conversation, after=line.n)

    async def _mark_regularly(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                async with asyncio.timeout(MARK_EVERY):
                    await stop.wait()
            except TimeoutError:
                await self._mark()

    async def _mark(self) -> None:
        marks, self._marks = self._marks, {}
        if not marks:
            return
        try:
            async with self._database.begin() as connection:
                await outbox.mark_relayed(connection, [(key, n, seq) for key, (n, seq) in marks.items()])
        except Unavailable as error:  # a mark is a hint; the stream's tail is the truth
            log.warning("relay.mark_failed", error=str(error))
