"""An in-memory event stream with the guarantees of the port, for tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from delivery.errors import AppendConflict, BrokerUnreachable
from delivery.events.event import Event
from delivery.events.follower import Follower
from delivery.events.port import EventStream, StoredEvent, StreamBounds, Tail


@dataclass(slots=True)
class _Log:
    """One conversation's events and followers."""

    lasting: list[tuple[StoredEvent, Event]] = field(default_factory=list)
    transient: list[StoredEvent] = field(default_factory=list)
    followers: set[Follower] = field(default_factory=set)
    last_lasting: int = 0


class MemoryEvents(EventStream):
    """Events in lists: `max_events` lasting ones per conversation; `unreachable` simulates an outage."""

    def __init__(self, *, epoch: str = "mem", max_events: int = 50_000) -> None:
        self._epoch = epoch
        self.unreachable = False
        self._max_events = max_events
        self._seq = 0
        self._losing = 0
        self._logs: defaultdict[tuple[str, str], _Log] = defaultdict(_Log)

    @property
    def epoch(self) -> str:
        """The incarnation of the stream."""
        return self._epoch

    def begin_epoch(self, epoch: str) -> None:
        """Start a new epoch and report a gap to all followers."""
        self._epoch = epoch
        self.mark_gap()

    def mark_gap(self) -> None:
        """Report a gap to every follower."""
        for log in self._logs.values():
            for follower in log.followers:
                follower.mark_gap()

    def lose_next(self, count: int) -> None:
        """Store the next `count` events without passing them to followers, as a broken connection does.

        After the last of them every follower gets a gap.
        """
        self._losing = count

    def _log(self, account: str, conversation: str) -> _Log:
        if self.unreachable:
            raise BrokerUnreachable
        return self._logs[account, conversation]

    async def append(self, event: Event, *, account: str, expected: int) -> int:
        """Append a lasting event by compare-and-set; raises AppendConflict, BrokerUnreachable."""
        log = self._log(account, event.conversation)
        if log.lasting and log.lasting[-1][1].id == event.id:
            return log.lasting[-1][0].seq
        if expected != log.last_lasting and (log.lasting or expected < log.last_lasting):
            raise AppendConflict(f"expected seq {expected}, the tail is {log.last_lasting}")
        recorded = self._record(event, previous=expected)
        log.lasting.append((recorded, event))
        log.last_lasting = recorded.seq
        del log.lasting[: -self._max_events]
        self._push(log, recorded)
        return recorded.seq

    async def publish_transient(self, event: Event, *, account: str) -> None:
        """Append a delta, or drop it while the stream is unreachable."""
        if self.unreachable:
            return
        log = self._log(account, event.conversation)
        previous_transient = log.transient[-1].seq if log.transient else 0
        recorded = self._record(event, previous=log.last_lasting, previous_transient=previous_transient)
        log.transient.append(recorded)
        self._push(log, recorded)

    def _record(self, event: Event, *, previous: int, previous_transient: int = 0) -> StoredEvent:
        self._seq += 1
        return StoredEvent(
            seq=self._seq,
            previous=min(previous, self._seq - 1),
            type=event.type,
            raw=event.encode(),
            previous_transient=previous_transient,
        )

    def _push(self, log: _Log, event: StoredEvent) -> None:
        if self._losing:
            self._losing -= 1
            if not self._losing:
                self.mark_gap()
            return
        for follower in log.followers:
            follower.push(event)

    async def tail(self, conversation: str, *, account: str) -> Tail | None:
        """Return the last stored lasting event, or None."""
        lasting = self._log(account, conversation).lasting
        if not lasting:
            return None
        recorded, event = lasting[-1]
        return Tail(seq=recorded.seq, n=event.n or 0, event_id=event.id)

    async def bounds(self, conversation: str, *, account: str) -> StreamBounds:
        """Return the first and the last position that are stored."""
        log = self._log(account, conversation)
        stored = self._stored(log)
        first = log.lasting[0][0] if log.lasting else next(iter(stored), None)
        return StreamBounds(
            epoch=self.epoch,
            first_seq=first.seq if first else 0,
            last_seq=stored[-1].seq if stored else 0,
            first_previous=log.lasting[0][0].previous if log.lasting else 0,
            last_transient=log.transient[-1] if log.transient else None,
        )

    def _stored(self, log: _Log) -> list[StoredEvent]:
        return sorted([item for item, _ in log.lasting] + log.transient, key=lambda item: item.seq)

    async def read(
        self, conversation: str, *, account: str, after: int, limit: int = 100, transient: bool = True
    ) -> Sequence[StoredEvent]:
        """Return stored events in order."""
        wanted = (
            item
            for item in self._stored(self._log(account, conversation))
            if item.seq > after and (transient or not item.transient)
        )
        return [item for item, _ in zip(wanted, range(limit), strict=False)]

    async def purge(self, conversation: str, *, account: str) -> None:
        """Remove every event of the conversation."""
        log = self._log(account, conversation)
        log.lasting.clear()
        log.transient.clear()

    @asynccontextmanager
    async def subscribe(self, conversation: str, *, account: str) -> AsyncIterator[Follower]:
        """Yield the events that are appended after entering."""
        follower = Follower()
        followers = self._log(account, conversation).followers
        followers.add(follower)
        try:
            yield follower
        finally:
            followers.discard(follower)
