"""How many requests a key, or an address without one, may make; told in RateLimit headers.

The headers are those of the IETF's draft "RateLimit header fields for HTTP": `RateLimit-Policy` says the
quota (`q` requests in `w` seconds), `RateLimit` how much is left (`r`) and when all of it is back (`t`).
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 60.0
_REMEMBERED = 10_000
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What one asker may still do: `remaining` requests now, all of them after `reset` seconds."""

    allowed: bool
    quota: int
    remaining: int
    reset: float
    retry_after: float

    def headers(self) -> dict[str, str]:
        """Return what every answer tells of it."""
        told = {
            "RateLimit-Policy": f'"default";q={self.quota};w={WINDOW:g}',
            "RateLimit": f'"default";r={self.remaining};t={math.ceil(self.reset)}',
        }
        return told if self.allowed else told | {"Retry-After": str(math.ceil(self.retry_after))}


class Rates:
    """A bucket for every asker, of a minute's worth of requests; bounded in number."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.quota = per_minute
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def take(self, asker: str) -> Standing:
        """Take one request out of the asker's bucket, if there is one (GCRA)."""
        now, step = self._clock(), WINDOW / self.quota
        full_at = max(self._full_at.pop(asker, now), now)
        wait = full_at + step - now - WINDOW
        allowed = wait <= _ROUNDING
        if allowed:
            full_at += step
        self._full_at[asker] = full_at
        while len(self._full_at) > _REMEMBERED:
            self._full_at.popitem(last=False)
        return Standing(
            allowed=allowed,
            quota=self.quota,
            remaining=max(0, math.floor((WINDOW - (full_at - now)) / step + _ROUNDING)),
            reset=full_at - now,
            retry_after=max(wait, 0.0),
        )
