"""The rate limit of requests for each key, or each address without one, with RateLimit headers.

The headers are those of the IETF's draft "RateLimit header fields for HTTP": `RateLimit-Policy` says the
quota (`q` requests in `w` seconds), `RateLimit` how much is left (`r`) and when all of it is back (`t`).
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
_MAX_TRACKED = 10_000
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitState:
    """A client's rate limit: `remaining` requests now, the whole quota after `reset` seconds."""

    allowed: bool
    quota: int
    remaining: int
    reset: float
    retry_after: float

    def headers(self) -> dict[str, str]:
        """Return the RateLimit headers of a response."""
        headers = {
            "RateLimit-Policy": f'"default";q={self.quota};w={WINDOW_SECONDS:g}',
            "RateLimit": f'"default";r={self.remaining};t={math.ceil(self.reset)}',
        }
        return headers if self.allowed else headers | {"Retry-After": str(math.ceil(self.retry_after))}


class RequestRateLimiter:
    """A rate limiter with a quota per minute for each client; the number of clients is bounded."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.quota = per_minute
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def try_acquire(self, client: str) -> RateLimitState:
        """Count one request of a client if its quota allows it (GCRA)."""
        now, step = self._clock(), WINDOW_SECONDS / self.quota
        full_at = max(self._full_at.pop(client, now), now)
        wait = full_at + step - now - WINDOW_SECONDS
        allowed = wait <= _ROUNDING
        if allowed:
            full_at += step
        self._full_at[client] = full_at
        while len(self._full_at) > _MAX_TRACKED:
            self._full_at.popitem(last=False)
        return RateLimitState(
            allowed=allowed,
            quota=self.quota,
            remaining=max(0, math.floor((WINDOW_SECONDS - (full_at - now)) / step + _ROUNDING)),
            reset=full_at - now,
            retry_after=max(wait, 0.0),
        )
