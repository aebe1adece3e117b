"""Rate limits of the simulated Slack: a token bucket per method, or per method and channel.

The rates are those of Slack's page on rate limits: `chat.postMessage` one a second per channel with short
bursts, the others by tier and workspace. A call above the limit gets a 429 with Retry-After.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from channels.slack.simulator.failure import ApiFailure
from channels.slack.simulator.world import Raw


@dataclass(slots=True)
class Rate:
    """A burst of calls and a rate per second after it; `in_room` counts each channel separately."""

    burst: float
    a_second: float
    in_room: bool = False


def tier(a_minute: int) -> Rate:
    """Return the rate of a tier."""
    return Rate(burst=a_minute, a_second=a_minute / 60)


TIERS = {1: tier(1), 2: tier(20), 3: tier(50), 4: tier(100)}
DOCUMENTED = {
    "chat.postMessage": Rate(burst=20, a_second=1, in_room=True),
    "chat.update": TIERS[3],
    "chat.delete": TIERS[3],
    "chat.postEphemeral": TIERS[4],
    "chat.startStream": TIERS[2],
    "chat.appendStream": TIERS[4],
    "chat.stopStream": TIERS[2],
    "conversations.history": TIERS[3],
    "conversations.replies": TIERS[3],
    "reactions.add": TIERS[3],
    "reactions.remove": TIERS[2],
    "reactions.get": TIERS[3],
    "files.getUploadURLExternal": TIERS[4],
    "files.completeUploadExternal": TIERS[4],
    "files.info": TIERS[4],
    "views.open": TIERS[4],
}


class RateLimits:
    """The buckets. `rates` may be changed at any time; a method without a rate has no limit."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.rates = dict(DOCUMENTED)
        self.refused = 0
        self._now = now
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}

    def acquire(self, method: str, given: Raw) -> None:
        """Take a token; raises ApiFailure with the seconds until one is available."""
        rate = self.rates.get(method)
        if rate is None:
            return
        place = (method, str(given.get("channel", "")) if rate.in_room else "")
        now = self._now()
        tokens, before = self._buckets.get(place, (rate.burst, now))
        tokens = min(rate.burst, tokens + (now - before) * rate.a_second)
        if tokens < 1:
            self._buckets[place] = (tokens, now)
            self.refused += 1
            raise ApiFailure(
                "ratelimited", status=429, retry_after=max(1, math.ceil((1 - tokens) / rate.a_second))
            )
        self._buckets[place] = (tokens - 1, now)
