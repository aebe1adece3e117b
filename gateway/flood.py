"""Flood control: how many messages a minute one person may give the bot in one room (in this process)."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

REMEMBERED = 10_000
"""People at a time whose rate is known; the ones heard of least recently make room."""

REFUSE_EVERY = 60.0
"""Seconds between refusals to one person."""

MINUTE = 60.0


class Flow(StrEnum):
    """What becomes of a message."""

    TAKEN = "taken"
    REFUSED = "refused"
    """Not taken, and the person is told."""
    DROPPED = "dropped"
    """Not taken, and the person has been told already."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float
    refused_at: float | None = None


class Flood:
    """A token bucket for each person in each room; a minute's worth may come at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str, str], _Bucket] = OrderedDict()

    def judge(self, who: tuple[str, str, str], per_minute: int) -> Flow:
        """Count one message of (channel, room, person); 0 a minute means no bound."""
        if not per_minute:
            return Flow.TAKEN
        bucket, now = self._bucket(who, per_minute), self._clock()
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return Flow.TAKEN
        if bucket.refused_at is not None and now - bucket.refused_at < REFUSE_EVERY:
            return Flow.DROPPED
        bucket.refused_at = now
        return Flow.REFUSED

    def _bucket(self, who: tuple[str, str, str], per_minute: int) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.setdefault(who, _Bucket(tokens=per_minute, filled_at=now))
        self._buckets.move_to_end(who)
        earned = (now - bucket.filled_at) * per_minute / MINUTE
        bucket.tokens = min(float(per_minute), bucket.tokens + earned)
        bucket.filled_at = now
        while len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return bucket
