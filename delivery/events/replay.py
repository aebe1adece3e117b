"""Replay the events of one conversation to a reader, from any position to the live edge and beyond.

A reader subscribes first, then reads the stored events up to the live edge, then yields the events that the
subscription has received since. An event whose predecessor is beyond the reader's position shows that one was
missed; the reader then reads again from its position. Positions only grow and no event is repeated. Events
that have expired are reported by a Gap or a Reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from delivery.errors import BrokerUnreachable
from delivery.events.event import TURN_ENDS, EventType
from delivery.events.port import EventStream, StoredEvent, StreamBounds

_BATCH = 256
_RETRY_SECONDS = 0.2
_STALE_SECONDS = 0.05
_STALE_TRIES = 40
_MAX_FINISHED = 64
_SUBJECTS = {EventType.MESSAGE_COMPLETED: "message", EventType.TOOL_COMPLETED: "call"}
"""The events that complete what deltas are parts of, with the key that names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """The first frame: the stored positions."""

    epoch: str
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Some events, in order."""

    items: Sequence[StoredEvent]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """All events up to `seq` have been yielded; the following frames are live."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The events from `first` to `last` have expired."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The reader's position is invalid; the stored events follow from the first one."""

    epoch: str


Frame = Subscribed | Events | CaughtUp | Gap | Reset


async def frames(
    stream: EventStream,
    conversation: str,
    *,
    account: str,
    after: int | None,
    epoch: str | None = None,
    deltas: bool = True,
    live: bool = True,
    published_seq: Callable[[str], Awaitable[int]] | None = None,
) -> AsyncGenerator[Frame, None]:
    """Yield a reader's frames: Subscribed, the missed events, CaughtUp once, then live events without end.

    `after` None: live only; 0: from the first stored event. `epoch`: the epoch of `after`, if the reader
    knows it. `deltas` False omits transient events. `live` False ends after CaughtUp. `published_seq` returns
    the last seq that a conversation ever had: a stream without events does not show that they have expired.
    Close the iterator (`contextlib.aclosing`) to unsubscribe. Raises BrokerUnreachable when the broker is
    away at the start.
    """
    async with stream.subscribe(conversation, account=account) as subscription:
        bounds = await stream.bounds(conversation, account=account)
        yield Subscribed(epoch=bounds.epoch, first_seq=bounds.first_seq, last_seq=bounds.last_seq)
        reader = _Reader(stream, conversation, account, bounds, deltas=deltas)
        if after is None:
            reader.position = bounds.last_seq
        else:
            reader.position = after
            is_unread = after == bounds.last_seq == 0 and epoch in (
                None,
                bounds.epoch,
            )  # else there is a Reset
            if is_unread and published_seq and (last := await published_seq(conversation)):
                yield Gap(first=1, last=last)
                reader.reported_up_to = last
            async for frame in reader.catch_up(bounds, claimed=epoch):
                yield frame
        yield CaughtUp(seq=reader.position)
        if live:
            async for frame in reader.follow_live(subscription):
                yield frame


class _Reader:
    """One reader's position and the messages that it knows to be complete."""

    def __init__(
        self, stream: EventStream, conversation: str, account: str, bounds: StreamBounds, *, deltas: bool
    ) -> None:
        self.position = 0
        self.reported_up_to = 0
        """The end of the gap that the reader got because all events have expired."""
        self._stream = stream
        self._conversation = conversation
        self._account = account
        self._deltas = deltas
        self._epoch = bounds.epoch
        self._finished: dict[str, None] = {}

    async def catch_up(self, bounds: StreamBounds | None, *, claimed: str | None) -> AsyncIterator[Frame]:
        """Yield the frames up to the live edge; after a broker outage continue when the broker is back."""
        while True:
            try:
                bounds = bounds or await self._stream.bounds(self._conversation, account=self._account)
                async for frame in self._read_to_edge(bounds, claimed=claimed):
                    yield frame
            except BrokerUnreachable:
                await asyncio.sleep(_RETRY_SECONDS)
                bounds, claimed = None, self._epoch
            else:
                return

    async def _read_to_edge(self, bounds: StreamBounds, *, claimed: str | None) -> AsyncIterator[Frame]:
        """Yield the frames from the reader's position to the live edge."""
        reset = (claimed or bounds.epoch) != bounds.epoch or self.position > bounds.last_seq
        self._epoch = bounds.epoch
        if reset:
            self.position = 0
            self._finished.clear()
            yield Reset(epoch=bounds.epoch)
        delta = await self._unfinished_delta(bounds) if self._deltas else None
        cursor, gap_reported, tries_left = self.position, reset, _STALE_TRIES
        while cursor < _edge(bounds, delta):
            batch = await self._read(cursor, bounds, delta)
            if tries_left and _is_stale(batch, cursor, delta):
                tries_left -= 1
                await asyncio.sleep(_STALE_SECONDS)
                delta = await self._unfinished_delta(bounds) if delta is not None else None
                continue
            if not batch:  # the next live event shows what is missing
                self.position = max(self.position, cursor)
                return
            cursor = batch[-1].seq
            for frame in self._to_frames(batch, bounds, delta, gap_reported=gap_reported):
                yield frame
                gap_reported = False
        self.position = max(self.position, bounds.last_seq)

    async def _read(self, after: int, bounds: StreamBounds, delta: StoredEvent | None) -> list[StoredEvent]:
        """Return the next events up to the live edge; what is after it has been received live.

        Deltas are read only if their message is not complete.
        """
        batch = await self._read_stored(after, transient=delta is not None)
        return [item for item in batch if item.seq <= bounds.last_seq]

    async def _read_stored(self, after: int, *, transient: bool) -> Sequence[StoredEvent]:
        return await self._stream.read(
            self._conversation, account=self._account, after=after, limit=_BATCH, transient=transient
        )

    def _to_frames(
        self,
        batch: Sequence[StoredEvent],
        bounds: StreamBounds,
        delta: StoredEvent | None,
        *,
        gap_reported: bool,
    ) -> Iterable[Frame]:
        """Split a batch at gaps and omit superseded deltas; after a Reset the first gap is not reported."""
        chosen: list[StoredEvent] = []
        for item in batch:
            if item.transient and item.seq <= bounds.last_seq and not _belongs(item, delta):
                continue
            known = max(self.position, self.reported_up_to)
            if item.previous > known and not (gap_reported and not chosen):
                if chosen:
                    yield Events(items=tuple(chosen))
                    chosen = []
                yield Gap(first=known + 1, last=item.previous)
            self.position = item.seq
            self._remember_finished(item)
            chosen.append(item)
        if chosen:
            yield Events(items=tuple(chosen))

    async def _unfinished_delta(self, bounds: StreamBounds) -> StoredEvent | None:
        """Return the newest delta if its message is not complete."""
        delta = bounds.last_transient
        if delta is None or delta.seq <= self.position:
            return None
        after = delta.seq
        while batch := await self._read_stored(after, transient=False):
            if any(_ends(item, delta) for item in batch):
                return None
            after = batch[-1].seq
        return delta

    async def follow_live(self, subscription: AsyncIterator[StoredEvent | None]) -> AsyncIterator[Frame]:
        """Yield the frames of live events; after a gap, read the stored events again."""
        async for item in subscription:
            if item is not None and item.seq <= self.position:
                continue
            if item is not None and item.transient and not self._deltas:
                continue
            if item is None or self._missed_before(item):
                async for frame in self.catch_up(None, claimed=self._epoch):
                    yield frame
                continue
            self.position = item.seq
            self._remember_finished(item)
            if not self._is_late(item):
                yield Events(items=(item,))

    def _missed_before(self, item: StoredEvent) -> bool:
        return max(item.previous, item.previous_transient) > self.position

    def _remember_finished(self, item: StoredEvent) -> None:
        """Remember that a message or a tool call is complete."""
        if item.type in _SUBJECTS:
            subject = item.event.data.get(_SUBJECTS[item.type])
            if isinstance(subject, str):
                self._finished[subject] = None
                while len(self._finished) > _MAX_FINISHED:
                    del self._finished[next(iter(self._finished))]

    def _is_late(self, item: StoredEvent) -> bool:
        data = item.event.data
        return item.transient and any(data.get(key) in self._finished for key in _SUBJECTS.values())


def _edge(bounds: StreamBounds, delta: StoredEvent | None) -> int:
    """Return the last seq to read; `delta` is the newest one of an unfinished message."""
    last = bounds.last_transient
    reads_last = delta is not None or last is None or last.seq < bounds.last_seq
    return bounds.last_seq if reads_last or last is None else last.previous


def _is_stale(batch: Sequence[StoredEvent], cursor: int, delta: StoredEvent | None) -> bool:
    """Return whether a batch lacks what the leader has: a NATS replica that lags behind has answered."""
    if not batch:
        return True
    if delta is None or not cursor < delta.seq <= batch[-1].seq:
        return False
    return all(item.seq != delta.seq for item in batch)


def _belongs(item: StoredEvent, delta: StoredEvent | None) -> bool:
    """Return whether a delta is of the same message or call, and attempt, as the newest one."""
    if delta is None:
        return False
    mine, newest = item.event, delta.event
    return mine.turn == newest.turn and all(
        mine.data.get(key) == newest.data.get(key) for key in ("message", "call", "attempt")
    )


def _ends(item: StoredEvent, delta: StoredEvent) -> bool:
    """Return whether an event completes or supersedes the message or call of a delta."""
    if item.type not in TURN_ENDS | {EventType.TURN_RESTARTED} | _SUBJECTS.keys():
        return False
    if item.event.turn != delta.event.turn:
        return False
    key = _SUBJECTS.get(item.type)
    if key is None:
        return True
    is_of_call = delta.type is EventType.TOOL_DELTA
    if is_of_call != (item.type is EventType.TOOL_COMPLETED):
        return False
    return item.event.data.get(key) in {None, delta.event.data.get(key)}
