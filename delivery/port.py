"""The doors of delivery: the durable stream, leases, wake-ups, and the sinks results go to."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Protocol

from delivery.event import TRANSIENT, Event, Kind


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """An event with its position.

    `previous` is the seq of the conversation's last lasting event before it (0: none), whatever its own sort;
    a reader whose cursor is below it has missed something. `sibling` is, for a transient event met live, the
    seq of the transient one before it (0: none or not known). `raw` is what `Event.dump` wrote.
    """

    seq: int
    previous: int
    type: Kind
    raw: bytes
    sibling: int = 0

    @cached_property
    def event(self) -> Event:
        """The event itself, decoded when first asked for."""
        return Event.load(self.raw)

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
class Extent:
    """What is kept of one conversation: seqs of the first and last kept event (0, 0: nothing).

    `first_previous` is `Recorded.previous` of the first kept lasting event: anything above a reader's
    cursor and up to it has been trimmed. `draft` is the newest transient event still kept.
    """

    epoch: str
    first_seq: int
    last_seq: int
    first_previous: int
    draft: Recorded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last lasting event of a conversation."""

    seq: int
    n: int
    event_id: str


class Stream(Protocol):
    """Durable ordered events of conversations; any number of processes read and append."""

    @abstractmethod
    async def append(self, event: Event, *, expected: int) -> int:
        """Append a lasting event and return its seq, if the conversation's last lasting seq is `expected`
        (or everything up to it has been trimmed meanwhile).

        Confirmed by the broker before it returns. Repeating an append that already succeeded returns the
        seq of the first (by event id, whenever it is still the tail). Raises Conflict, Unreachable, Refused.
        """

    @abstractmethod
    async def whisper(self, event: Event) -> None:
        """Append a transient event, best effort: never raises when the broker is away, but may drop it."""

    @abstractmethod
    async def tail(self, conversation: str) -> Tail | None:
        """Return the last lasting event kept, or None."""

    @abstractmethod
    async def extent(self, conversation: str) -> Extent:
        """Return what is kept."""

    @abstractmethod
    async def read(
        self, conversation: str, *, after: int, limit: int = 100, transient: bool = True
    ) -> Sequence[Recorded]:
        """Return up to `limit` kept events with seq > `after`, in order; an empty answer is the live edge."""

    @abstractmethod
    async def forget(self, conversation: str) -> None:
        """Remove every event of a conversation for good; repeating it is no error. Raises Unreachable."""

    @abstractmethod
    def follow(self, conversation: str) -> AbstractAsyncContextManager[AsyncIterator[Recorded | None]]:
        """Yield events as they are appended anywhere, from the moment of entering; never ends by itself.

        At-most-once and bounded: a follower sees by `previous` and `sibling` that something is missing and
        reads it. None means: something may have been missed (reconnection, or more than 256 events or 1 MiB
        behind), read from your cursor. `delivery.replay.frames` does all this.
        """


class Lease(Protocol):
    """An exclusive, expiring, renewed right; held inside `Leases.hold`."""

    name: str

    @abstractmethod
    def check(self) -> None:
        """Raise LeaseLost unless the right is certainly still ours (monotonic clock, safety margin)."""

    @abstractmethod
    async def wait_lost(self) -> None:
        """Return when the lease is lost; never while it is held."""


class Leases(Protocol):
    """Exclusive rights among all replicas, timed by the broker's clock alone."""

    @abstractmethod
    def hold(self, name: str, *, ttl: float = 6.0) -> AbstractAsyncContextManager[Lease]:
        """Acquire, renew every ttl/3, release on exit (a successor may take over at once); raises Busy.

        `name` is any string; it is hashed before it becomes a subject.
        """

    @abstractmethod
    async def is_held(self, name: str) -> bool:
        """Say whether anybody holds this name now; raises DeliveryError while nobody can know."""


class Queue(StrEnum):
    """What there is to do; each queue coalesces wake-ups by key."""

    TURN = "turn"
    DELIVER = "deliver"
    HOOK = "hook"


class Signal(Protocol):
    """A wake-up: look at `key` in SQL. Signals are hints: losing or repeating one loses nothing."""

    key: str

    @abstractmethod
    async def done(self) -> None:
        """The key was looked at; a wake-up sent meanwhile arrives afresh."""

    @abstractmethod
    async def later(self, seconds: float) -> None:
        """Give it back, to be delivered again after `seconds`."""

    @abstractmethod
    async def working(self) -> None:
        """Still at it: do not redeliver for another 30 s; call every 10 s."""


class Signals(Protocol):
    """Wake-ups among all replicas; each goes to one listener of its queue."""

    @abstractmethod
    async def wake(self, queue: Queue, key: str) -> None:
        """Best effort: never raises when the broker is away (the janitor repeats it)."""

    @abstractmethod
    async def wake_at(self, queue: Queue, key: str, moment: datetime) -> None:
        """Wake at a moment; a second call for the same key replaces the first. Best effort."""

    @abstractmethod
    def listen(self, queue: Queue, *, at_most: int, stop: asyncio.Event) -> AsyncIterator[Signal]:
        """Yield signals until `stop`, at most `at_most` undone at a time; survives broker restarts."""


class Verdict(StrEnum):
    """How an attempt ended."""

    DELIVERED = "delivered"
    RETRY = "retry"
    AMBIGUOUS = "ambiguous"
    """It may have arrived; the sink says so when trying again could say it twice."""
    GIVE_UP = "give_up"
    OPERATOR = "operator"
    """Only an operator can help: tried again rarely, and told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one attempt; `status` and `excerpt` (≤ 1 KiB) are for the attempt log."""

    verdict: Verdict
    detail: str = ""
    platform_id: str | None = None
    retry_after: float | None = None
    hold: bool = False
    """The whole destination, not this delivery alone, waits out `retry_after`."""
    hold_bot: bool = False
    """And not this destination alone: everything the same bot says."""
    uncertain: bool = False
    """It may have arrived, by this attempt or an earlier one, and the sink finds out before it repeats it."""
    address_dead: bool = False
    disable: bool = False
    status: int | None = None
    excerpt: str = ""


def _nothing() -> None:
    """Nothing speaks against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The obligation to bring one part of one event to one route.

    `body` is what the sink was given at planning time (a chat part's text and buttons, or the event for a
    webhook). `platform_id` is set when an earlier attempt (or a draft) already shows there. `uncertain`: an
    earlier attempt may have arrived; `tried_at` is then when the first one began. `check` raises LeaseLost
    once another may be looking after it: a sink that has waited asks right before it speaks. What it enters
    in `held` it has until the outcome is recorded.
    """

    id: str
    account: str
    event_id: str
    event_type: str
    event_time: datetime
    conversation: str | None
    kind: str
    target: str
    part: int
    body: bytes
    attempt: int
    platform_id: str | None = None
    uncertain: bool = False
    turn: str | None = None
    tried_at: datetime | None = None
    check: Callable[[], None] = field(default=_nothing, repr=False, compare=False)
    held: AsyncExitStack = field(default_factory=AsyncExitStack, repr=False, compare=False)


class Sink(Protocol):
    """Delivers to one kind of route. Makes one attempt, judges it, and never retries by itself."""

    @abstractmethod
    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once within 30 s (a file: two minutes); never raises but on cancellation (or what
        `delivery.check` raises).

        The same `delivery.id` and event id accompany every attempt.
        """
