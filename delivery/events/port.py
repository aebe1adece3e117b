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

    `previous` is the seq of the conversation's last lasting event before it (0: none), whatever its own sort;
    a reader whose cursor is below it has missed something. `sibling` is, for a transient event met live, the
    seq of the transient one before it (0: none or not known). `raw` is what `Event.dump` wrote.
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
        """Whether the event is one of those that are not kept."""
        return self.type in TRANSIENT

    def as_json(self) -> bytes:
        """Return the public JSON with its seq, without decoding what was stored; one for all readers."""
        return self._as_json

    @cached_property
    def _as_json(self) -> bytes:
        return b'{"v":1,"seq":%d,%b' % (self.seq, self.raw.removeprefix(b'{"v":1,'))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """What is kept of one conversation: seqs of the first and last kept event (0, 0: nothing).

    `first_previous` is `Recorded.previous` of the first kept lasting event: anything above a reader's
    cursor and up to it has been trimmed. `draft` is the newest transient event still kept.
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
    """Durable ordered events of conversations; any number of processes read and append."""

    @abstractmethod
    async def append(self, event: Event, *, expected: int) -> int:
        """Append a lasting event and return its seq, if the conversation's last lasting seq is `expected`
        (or everything up to it has been trimmed meanwhile).

        Confirmed by the broker before it returns. Repeating an append that already succeeded returns the
        seq of the first (by event id, whenever it is still the tail). Raises Conflict, Unreachable, Refused.
        """

    @abstractmethod
    async def publish_transient(self, event: Event) -> None:
        """Append a transient event, best effort: never raises when the broker is away, but may drop it."""

    @abstractmethod
    async def tail(self, conversation: str) -> Tail | None:
        """Return the last lasting event kept, or None."""

    @abstractmethod
    async def bounds(self, conversation: str) -> StreamBounds:
        """Return what is kept."""

    @abstractmethod
    async def read(
        self, conversation: str, *, after: int, limit: int = 100, transient: bool = True
    ) -> Sequence[StoredEvent]:
        """Return up to `limit` kept events with seq > `after`, in order; an empty answer is the live edge."""

    @abstractmethod
    async def purge(self, conversation: str) -> None:
        """Remove every event of a conversation for good; repeating it is no error. Raises Unreachable."""

    @abstractmethod
    def subscribe(self, conversation: str) -> AbstractAsyncContextManager[AsyncIterator[StoredEvent | None]]:
        """Yield events as they are appended anywhere, from the moment of entering; never ends by itself.

        At-most-once and bounded: a follower sees by `previous` and `sibling` that something is missing and
        reads it. None means: something may have been missed (reconnection, or more than 256 events or 1 MiB
        behind), read from your cursor. `delivery.events.replay.frames` does all this.
        """
