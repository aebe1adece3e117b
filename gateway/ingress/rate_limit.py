"""Rate limits of inbound messages, per person and room, in this process.

Rejecting a message is cheap: the decision is made in memory, and the keys are stored in batches.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from delivery.database.engine import Connection
from gateway.store.conversations import conversations

MAX_SENDERS = 10_000
"""Senders that are remembered; the least recently seen are evicted."""

REPLY_INTERVAL = 60.0
"""Seconds between two rate limit replies to one person."""

MINUTE = 60.0

UNKNOWN_SECONDS = 0.5
"""Seconds for which a frequent unknown sender counts as unknown without a query."""

UNKNOWN_BURST = 5
"""Messages of an unknown sender within BURST_WINDOW of each other that are all checked."""

BURST_WINDOW = 10.0

MAX_DROPPED_KEYS = 200
"""Keys of dropped messages that are held in memory before they are stored."""


class RateDecision(StrEnum):
    """The decision about one message."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """Not processed; the person gets a reply."""
    DROPPED = "dropped"
    """Not processed; the person got a reply before."""


@dataclass(slots=True)
class _SenderBucket:
    tokens: float
    filled_at: float
    refused_at: float | None = None


class SenderRateLimiter:
    """A token bucket per person and room with a burst of one minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str, str], _SenderBucket] = OrderedDict()

    def acquire(self, sender: tuple[str, str, str], per_minute: int) -> RateDecision:
        """Count one message of (channel, room, person); 0 per minute means no limit."""
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
        """Return whether the next message of a refused sender will be dropped; counts nothing."""
        if not per_minute or sender not in self._buckets:
            return False
        bucket = self._bucket(sender, per_minute)
        replied = bucket.refused_at is not None and self._clock() - bucket.refused_at < REPLY_INTERVAL
        return replied and bucket.tokens < 1

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


def seconds_between(per_minute: int) -> int:
    """Return the whole seconds after which a person over this rate has earned a message."""
    return math.ceil(MINUTE / per_minute)


class UnknownSenders:
    """Unknown senders with many recent messages, which are dropped without a query."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str, str], tuple[float, int]] = OrderedDict()

    def record(self, sender: tuple[str, str, str]) -> None:
        """Record a message of an unknown (channel, room, person)."""
        now, (before, count) = self._clock(), self._seen.get(sender, (float("-inf"), 0))
        self._seen[sender] = now, count + 1 if now - before < BURST_WINDOW else 1
        self._seen.move_to_end(sender)
        while len(self._seen) > MAX_SENDERS:
            self._seen.popitem(last=False)

    def should_drop(self, sender: tuple[str, str, str]) -> bool:
        """Return whether a frequent sender was unknown a moment ago."""
        found_at, count = self._seen.get(sender, (float("-inf"), 0))
        return count >= UNKNOWN_BURST and self._clock() - found_at < UNKNOWN_SECONDS


class DroppedKeys:
    """Keys of dropped messages that the next transaction stores.

    They are stored before any other message is processed, so that a repeated one is recognised. Keys that
    a crash loses belong to messages that had no effect.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str, str], None] = {}

    def add(self, account: str, source: str, key: str) -> bool:
        """Add a message; returns whether to store the keys now."""
        self._keys[account, source, key] = None
        return len(self._keys) >= MAX_DROPPED_KEYS

    async def write(self, connection: Connection) -> tuple[tuple[str, str, str], ...]:
        """Store all keys in this transaction; pass the returned ones to `remove` once it is committed."""
        keys = tuple(self._keys)
        if keys:
            await conversations.record_events(connection, keys)
        return keys

    def remove(self, written: tuple[tuple[str, str, str], ...]) -> None:
        """Remove keys that are stored."""
        for key in written:
            self._keys.pop(key, None)
