"""Replay: what a reader of one conversation gets, from any position up to the live edge and on.

The splice: follow first, then read what is stored up to the edge, then hand on what was followed meanwhile.
An event that names a predecessor beyond the reader's position proves that one was missed: read again from
the position. Positions only grow, nothing is given twice, and what cannot be given is named by a gap or a
reset, never passed over in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from delivery.errors import BrokerUnreachable
from delivery.events.event import EventType
from delivery.events.port import EventStream, StoredEvent, StreamBounds

_BATCH = 256
_RETRY_SECONDS = 0.2
_STALE_SECONDS = 0.05
_STALE_TRIES = 40
_MAX_FINISHED = 64
_TURN_ENDS = frozenset({EventType.TURN_COMPLETED, EventType.TURN_FAILED, EventType.TURN_CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """What is kept, before anything else."""

    epoch: str
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Some events, in order."""

    items: Sequence[StoredEvent]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """Everything up to `seq` has been given; what follows is live."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The events from `first` to `last` are no longer kept."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The reader's position means nothing here: forget it, what is kept follows from its beginning."""

    epoch: str


Frame = Subscribed | Events | CaughtUp | Gap | Reset


async def frames(
    stream: EventStream,
    conversation: str,
    *,
    after: int | None,
    epoch: str | None = None,
    deltas: bool = True,
    live: bool = True,
) -> AsyncGenerator[Frame, None]:
    """Yield a reader's frames: Subscribed, what it missed, CaughtUp once, then what happens; without end.

    `after` None: live only; 0: from the first kept. `epoch`: the one `after` was given in, if the reader
    knows. `deltas` False leaves transient events out. `live` False ends after CaughtUp. Close the iterator
    (`contextlib.aclosing`) to stop following. Raises Unreachable when the broker is away at the start.
    """
    async with stream.subscribe(conversation) as followed:
        extent = await stream.bounds(conversation)
        yield Subscribed(epoch=extent.epoch, first_seq=extent.first_seq, last_seq=extent.last_seq)
        reader = _Reader(stream, conversation, extent, deltas=deltas)
        if after is None:
            reader.position = extent.last_seq
        else:
            reader.position = after
            async for frame in reader.catch_up(extent, claimed=epoch):
                yield frame
        yield CaughtUp(seq=reader.position)
        if live:
            async for frame in reader.follow_live(followed):
                yield frame


class _Reader:
    """One reader's position and what it knows to be superseded."""

    def __init__(self, stream: EventStream, conversation: str, bounds: StreamBounds, *, deltas: bool) -> None:
        self.position = 0
        self._stream = stream
        self._conversation = conversation
        self._deltas = deltas
        self._epoch = bounds.epoch
        self._finished: dict[str, None] = {}

    async def catch_up(self, bounds: StreamBounds | None, *, claimed: str | None) -> AsyncIterator[Frame]:
        """Catch up; when the broker goes away meanwhile, go on as soon as it is back."""
        while True:
            try:
                bounds = bounds or await self._stream.bounds(self._conversation)
                async for frame in self._read_to_edge(bounds, claimed=claimed):
                    yield frame
            except BrokerUnreachable:
                await asyncio.sleep(_RETRY_SECONDS)
                bounds, claimed = None, self._epoch
            else:
                return

    async def _read_to_edge(self, bounds: StreamBounds, *, claimed: str | None) -> AsyncIterator[Frame]:
        """Read from the position to the edge."""
        reset = (claimed or bounds.epoch) != bounds.epoch or self.position > bounds.last_seq
        self._epoch = bounds.epoch
        if reset:
            self.position = 0
            self._finished.clear()
            yield Reset(epoch=bounds.epoch)
        draft = await self._unfinished_delta(bounds) if self._deltas else None
        cursor, excused, patience = self.position, reset, _STALE_TRIES
        while (batch := await self._read(cursor)) or (cursor < self._edge(bounds) and patience):
            if not batch:  # a replica that lags behind the leader
                patience -= 1
                await asyncio.sleep(_STALE_SECONDS)
                continue
            cursor = batch[-1].seq
            for frame in self._to_frames(batch, bounds, draft, excused=excused):
                yield frame
                excused = False
        self.position = max(self.position, cursor)

    def _edge(self, bounds: StreamBounds) -> int:
        """Return the last seq that this reader is to be given."""
        draft = bounds.last_transient
        if self._deltas or draft is None or draft.seq < bounds.last_seq:
            return bounds.last_seq
        return draft.previous

    async def _read(self, after: int) -> Sequence[StoredEvent]:
        return await self._stream.read(self._conversation, after=after, limit=_BATCH, transient=self._deltas)

    def _to_frames(
        self, batch: Sequence[StoredEvent], bounds: StreamBounds, draft: StoredEvent | None, *, excused: bool
    ) -> Iterable[Frame]:
        """Split a batch at gaps, and leave superseded deltas out. A reset has told of its gap already."""
        chosen: list[StoredEvent] = []
        for item in batch:
            if item.transient and item.seq <= bounds.last_seq and not _belongs(item, draft):
                continue
            if item.previous > self.position and not (excused and not chosen):
                if chosen:
                    yield Events(items=tuple(chosen))
                    chosen = []
                yield Gap(first=self.position + 1, last=item.previous)
            self.position = item.seq
            self._remember_finished(item)
            chosen.append(item)
        if chosen:
            yield Events(items=tuple(chosen))

    async def _unfinished_delta(self, bounds: StreamBounds) -> StoredEvent | None:
        """Return the newest delta if its message is still being said."""
        draft = bounds.last_transient
        if draft is None or draft.seq <= self.position:
            return None
        after = draft.seq
        while batch := await self._stream.read(
            self._conversation, after=after, limit=_BATCH, transient=False
        ):
            if any(_ends(item, draft) for item in batch):
                return None
            after = batch[-1].seq
        return draft

    async def follow_live(self, subscription: AsyncIterator[StoredEvent | None]) -> AsyncIterator[Frame]:
        """Hand on what is followed, and read again whenever something may be missing."""
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
        """Remember which messages are complete."""
        if item.type is EventType.MESSAGE_COMPLETED:
            message = item.event.data.get("message")
            if isinstance(message, str):
                self._finished[message] = None
                while len(self._finished) > _MAX_FINISHED:
                    del self._finished[next(iter(self._finished))]

    def _is_late(self, item: StoredEvent) -> bool:
        return item.transient and item.event.data.get("message") in self._finished


def _belongs(item: StoredEvent, draft: StoredEvent | None) -> bool:
    """Tell whether a delta is of the same message and attempt as the newest one."""
    if draft is None:
        return False
    mine, newest = item.event, draft.event
    return mine.turn == newest.turn and all(
        mine.data.get(key) == newest.data.get(key) for key in ("message", "attempt")
    )


def _ends(item: StoredEvent, draft: StoredEvent) -> bool:
    """Tell whether an event completes or supersedes what a delta belongs to."""
    if item.type not in _TURN_ENDS | {EventType.TURN_RESTARTED, EventType.MESSAGE_COMPLETED}:
        return False
    if item.event.turn != draft.event.turn:
        return False
    message = item.event.data.get("message")
    return item.type is not EventType.MESSAGE_COMPLETED or message in {None, draft.event.data.get("message")}
