"""Discord's rate limits: buckets per call and channel, and a global one for the bot.

Unless limits are set, responses report buckets and nothing is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from channels.discord.simulator.world import ApiFailure, Raw


@dataclass(slots=True)
class RateWindow:
    """A bucket that is refilled completely when its window ends."""

    used: int = 0
    until: float = 0.0


@dataclass(slots=True)
class RateLimits:
    """Limits of calls per channel and window, and of the whole bot."""

    calls: dict[str, tuple[int, float]] = field(default_factory=dict)
    everywhere: tuple[int, float] | None = None
    clock: Callable[[], float] = time.monotonic
    refused: int = 0
    _windows: dict[tuple[str, str], RateWindow] = field(default_factory=dict)

    def acquire(self, name: str, owner: str, *, as_bot: bool) -> Raw:
        """Count a call and return the headers of its response; raises ApiFailure above the limit."""
        if self.everywhere and as_bot:
            left, wait = self._count(("", ""), self.everywhere)
            if left < 0:
                raise self._refusal(wait, {"X-RateLimit-Global": "true"}, scope="global")
        most, seconds = self.calls.get(name, (5, 5.0))
        headers: Raw = {"X-RateLimit-Limit": most, "X-RateLimit-Bucket": _hash(name)}
        left, wait = (
            self._count((name, owner), (most, seconds)) if name in self.calls else (most - 1, seconds)
        )
        headers |= {"X-RateLimit-Remaining": max(left, 0), "X-RateLimit-Reset-After": f"{wait:.3f}"}
        headers["X-RateLimit-Reset"] = f"{time.time() + wait:.3f}"
        if left < 0:
            raise self._refusal(wait, headers, scope="user")
        return headers

    def _count(self, key: tuple[str, str], limit: tuple[int, float]) -> tuple[int, float]:
        """Return how many calls are left (negative above the limit) and when the window ends."""
        window, now = self._windows.setdefault(key, RateWindow()), self.clock()
        if now >= window.until:
            window.used, window.until = 0, now + limit[1]
        window.used = min(window.used + 1, limit[0] + 1)
        return limit[0] - window.used, window.until - now

    def _refusal(self, wait: float, headers: Raw, *, scope: str) -> ApiFailure:
        self.refused += 1
        return rate_limited(wait, scope=scope, headers=headers)


def rate_limited(wait: float, *, scope: str, headers: Raw | None = None) -> ApiFailure:
    """Return a 429; the `Via` header distinguishes it from one of Discord's proxy."""
    fields = {"Retry-After": int(wait) + 1, "X-RateLimit-Scope": scope, "Via": "1.1 google"}
    extra = {"retry_after": round(wait, 3), "global": scope == "global"}
    return ApiFailure(
        429, 0, "You are being rate limited.", extra=extra, headers={**(headers or {}), **fields}
    )


def _hash(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:32]
