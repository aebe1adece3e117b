"""The port of the durable event stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from delivery.events.event import TRANSIENT, Event, EventType


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    """An event with its position.

    `previous` is the seq of the conversation's last lasting event before it (0: none), for lasting and
    transient events alike; a reader whose cursor is below it has missed an event. `previous_transient` is,
    for a transient event received live, the seq of the transient event before it (0: none or unknown). `raw`
    is the output of `Event.encode`.
    """

    seq: int
    previous: int
    type: EventType
    raw: bytes
    previous_transient: int = 0

    @cached_property
    def event(self) -> Event:
        """The event itself, decoded when first asked for."""
        return Event.decode(self.raw)

    @property
    def transient(self) -> bool:
        """Whether the event is transient: stored until its turn ends, for an hour at most."""
        return self.type in TRANSIENT

    def as_json(self) -> bytes:
        """Return the public JSON with its seq, computed once for all readers and without decoding `raw`."""
        return self._as_json

    @cached_property
    def _as_json(self) -> bytes:
        return b'{"v":1,"seq":%d,%b' % (self.seq, self.raw.removeprefix(b'{"v":1,'))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """The seqs of the first and last stored event of one conversation (0, 0: none).

    `first_previous` is `StoredEvent.previous` of the first stored lasting event: any event above a reader's
    cursor and up to it has expired. `last_transient` is the newest stored transient event.
    """

    epoch: str
    first_seq: int
    last_seq: int
    first_previous: int
    last_transient: StoredEvent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last lasting event of a conversation."""

    seq: int
    n: int
    event_id: str


class EventStream(Protocol):
    """The durable, ordered events of conversations; any number of processes read and append.

    `account` is the owner of the conversation. For another account the conversation has no events.
    """

    @property
    @abstractmethod
    def epoch(self) -> str:
        """The incarnation of the stream that positions belong to; may change at run time. Raises nothing."""

    @abstractmethod
    async def append(self, event: Event, *, account: str, expected: int) -> int:
        """Append a lasting event if the conversation's last lasting seq is `expected`, and return its seq.

        Succeeds too when all events up to `expected` have expired. The broker has confirmed the event when
        this returns. Repeating an append whose event (by id) is still the tail returns its first seq.
        Raises AppendConflict, BrokerUnreachable, BrokerRefused.
        """

    @abstractmethod
    async def publish_transient(self, event: Event, *, account: str) -> None:
        """Append a transient event, best effort; raises nothing: it is dropped when the broker is away."""

    @abstractmethod
    async def tail(self, conversation: str, *, account: str) -> Tail | None:
        """Return the last stored lasting event, or None; raises BrokerUnreachable."""

    @abstractmethod
    async def bounds(self, conversation: str, *, account: str) -> StreamBounds:
        """Return the first and the last position that are stored; raises BrokerUnreachable, BrokerRefused."""

    @abstractmethod
    async def read(
        self, conversation: str, *, account: str, after: int, limit: int = 100, transient: bool = True
    ) -> Sequence[StoredEvent]:
        """Return up to `limit` stored events with seq > `after`, in order; none are left at the live edge.

        Without `transient` only lasting ones. Raises BrokerUnreachable, BrokerRefused.
        """

    @abstractmethod
    async def purge(self, conversation: str, *, account: str) -> None:
        """Delete every event of a conversation. Idempotent.

        Raises BrokerUnreachable unless the events are deleted, also if one is appended during the call.
        """

    @abstractmethod
    def subscribe(
        self, conversation: str, *, account: str
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredEvent | None]]:
        """Yield events as any process appends them, from the moment of entering, without end.

        At-most-once and bounded. A missing event shows in `previous` and `previous_transient`; read it from
        the stream. None marks a gap (a reconnection, or a reader more than 256 events or 1 MiB behind): read
        from your cursor. `delivery.events.replay.frames` implements this. Entering raises BrokerUnreachable
        if the connection to the broker is closed; a lost connection raises nothing and is a gap.
        """
