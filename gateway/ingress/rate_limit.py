"""Flood control, in this process: how many messages a minute one person may give the bot in one room.

What is turned away costs next to nothing: it is judged in memory, and its keys are written down together.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from delivery.database.engine import Connection
from gateway.store.conversations import conversations

MAX_SENDERS = 10_000
"""People at a time whose rate is known; the ones heard of least recently make room."""

REPLY_INTERVAL = 60.0
"""Seconds between refusals to one person."""

MINUTE = 60.0

FULL_SECONDS = 0.5
"""Seconds for which a line that was found full is taken for full without another look."""

UNKNOWN_SECONDS = 0.5
"""Seconds for which a stranger who talks much is taken for one without another look."""

UNKNOWN_BURST = 5
"""Messages of a stranger, none of them ten seconds after the one before, that are all looked at."""

BURST_WINDOW = 10.0

MAX_DROPPED_KEYS = 200
"""Keys of dropped messages that are kept in memory at the most before they are written down."""


class RateDecision(StrEnum):
    """What becomes of a message."""

    ACCEPTED = "taken"
    REFUSED = "refused"
    """Not taken, and the person is told."""
    DROPPED = "dropped"
    """Not taken, and the person has been told already."""


@dataclass(slots=True)
class _SenderBucket:
    tokens: float
    filled_at: float
    refused_at: float | None = None


class SenderRateLimiter:
    """A token bucket for each person in each room; a minute's worth may come at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str, str], _SenderBucket] = OrderedDict()

    def acquire(self, sender: tuple[str, str, str], per_minute: int) -> RateDecision:
        """Count one message of (channel, room, person); 0 a minute means no bound."""
        if not per_minute:
            return RateDecision.ACCEPTED
        bucket, now = self._bucket(sender, per_minute), self._clock()
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return RateDecision.ACCEPTED
        if bucket.refused_at is not None and now - bucket.refused_at < REPLY_INTERVAL:
            return RateDecision.DROPPED
        bucket.refused_at = now
        return RateDecision.REFUSED

    def will_drop(self, sender: tuple[str, str, str], per_minute: int) -> bool:
        """Say whether the next message of one who has been refused will be dropped; counts nothing."""
        if not per_minute or sender not in self._buckets:
            return False
        bucket = self._bucket(sender, per_minute)
        told = bucket.refused_at is not None and self._clock() - bucket.refused_at < REPLY_INTERVAL
        return told and bucket.tokens < 1

    def _bucket(self, sender: tuple[str, str, str], per_minute: int) -> _SenderBucket:
        now = self._clock()
        bucket = self._buckets.setdefault(sender, _SenderBucket(tokens=per_minute, filled_at=now))
        self._buckets.move_to_end(sender)
        earned = (now - bucket.filled_at) * per_minute / MINUTE
        bucket.tokens = min(float(per_minute), bucket.tokens + earned)
        bucket.filled_at = now
        while len(self._buckets) > MAX_SENDERS:
            self._buckets.popitem(last=False)
        return bucket


@dataclass(slots=True)
class _FullQueue:
    full_at: float
    reported_at: float | None = None


class FullQueues:
    """The chat threads in which too much waited a moment ago, and when that was said there last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: OrderedDict[str, _FullQueue] = OrderedDict()

    def record_full(self, thread: str) -> bool:
        """Note that a thread's line was just found full; say whether it is time to say so there."""
        now = self._clock()
        line = self._queues.setdefault(thread, _FullQueue(full_at=now))
        self._queues.move_to_end(thread)
        while len(self._queues) > MAX_SENDERS:
            self._queues.popitem(last=False)
        line.full_at = now
        if line.reported_at is not None and now - line.reported_at < REPLY_INTERVAL:
            return False
        line.reported_at = now
        return True

    def is_full(self, thread: str) -> bool:
        """Say whether a thread's line was full a moment ago, and people there were told."""
        line = self._queues.get(thread)
        return line is not None and self._clock() - line.full_at < FULL_SECONDS

    def recheck(self, thread: str) -> None:
        """Something may have changed in a thread: the next message there is judged by what waits."""
        if thread in self._queues:
            self._queues[thread].full_at = float("-inf")


class UnknownSenders:
    """Whom the gate did not know a moment ago though they talk much: what they say is not looked at."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str, str], tuple[float, int]] = OrderedDict()

    def record(self, sender: tuple[str, str, str]) -> None:
        """Note that nobody knows (channel, room, person)."""
        now, (before, count) = self._clock(), self._seen.get(sender, (float("-inf"), 0))
        self._seen[sender] = now, count + 1 if now - before < BURST_WINDOW else 1
        self._seen.move_to_end(sender)
        while len(self._seen) > MAX_SENDERS:
            self._seen.popitem(last=False)

    def should_drop(self, sender: tuple[str, str, str]) -> bool:
        """Say whether somebody who talks much was a stranger a moment ago."""
        found_at, count = self._seen.get(sender, (float("-inf"), 0))
        return count >= UNKNOWN_BURST and self._clock() - found_at < UNKNOWN_SECONDS


class DroppedKeys:
    """Messages that were turned away and whose keys are still to be remembered, with the next change.

    They are written before any other message is looked at, so that one which comes again is known.

    What a crash takes with it was answered by nothing and changed nothing.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str, str], None] = {}

    def add(self, account: str, source: str, key: str) -> bool:
        """Note a message; say whether it is time to write."""
        self._keys[account, source, key] = None
        return len(self._keys) >= MAX_DROPPED_KEYS

    async def write(self, connection: Connection) -> tuple[tuple[str, str, str], ...]:
        """Remember all of them in this transaction; `forget` what is returned once it is committed."""
        keys = tuple(self._keys)
        if keys:
            await conversations.record_events(connection, keys)
        return keys

    def remove(self, written: tuple[tuple[str, str, str], ...]) -> None:
        """Let go of what is written down."""
        for key in written:
            self._keys.pop(key, None)
