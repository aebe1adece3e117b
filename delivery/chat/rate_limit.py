"""The rate budget of one bot: what it may still say, in each room and in all.

Token buckets, cut so that no stretch of time sees more than the platform's stated limit. Drafts (edits,
typing) always keep to them, and leave a reserve untouched: an edit needs the reserve and one token more,
typing twice the reserve. So whatever drafts do, a final text finds its token.

Final texts are let through in bursts as long as the platform takes them: stated limits are averages, and a
person should not wait for an average. A 429 closes the room (or the whole bot) for as long as the platform
says, and makes the stated limits strict there for ten minutes; 429s in several rooms at once mean that it is
the whole bot that was too fast. So a bucket that overflows does so once, not again and again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

from channels.port import ChannelLimits

STRICT_SECONDS = 600.0
"""How long a 429 is remembered."""

_BURST, _SINGLE, _SLOWER = 0.4, 1.5, 0.95
_LENIENT_SECONDS = 5.0
RESERVE = 0.25
"""The share of what may come at once that drafts leave to final texts."""

_NEGLIGIBLE = 1e-9
_MAX_ROOMS = 1024
_BOT_WIDE_ROOMS, _BOT_WIDE_SECONDS = 3, 5.0


class SendPriority(IntEnum):
    """What a token is wanted for; the number is how many times the reserve must stay untouched."""

    FINAL = 0
    EDIT = 1
    TYPING = 2


class TokenBucket:
    """A token bucket on an injected clock: pure arithmetic, no waiting."""

    __slots__ = ("_capacity", "_level", "_rate", "_reserve", "_seen")

    def __init__(self, *, rate: float, capacity: float, reserve: float, now: float) -> None:
        self._rate = rate
        self._capacity = max(capacity, 1.0)
        self._reserve = min(reserve, self._capacity - 1.0)
        self._level = self._capacity
        self._seen = now

    @property
    def state(self) -> tuple[float, float]:
        """What there was at the last look, and when that was: all that `restored` needs."""
        return self._level, self._seen

    def restore(self, level: float, seen: float) -> Self:
        """Go on from a state that was kept somewhere."""
        self._level, self._seen = min(level, self._capacity), seen
        return self

    def available(self, priority: SendPriority, now: float) -> int:
        """Return how many tokens there are for `use` now."""
        free = self._refilled(now) - min(self._reserve * priority, self._capacity - 1.0)
        return max(int(free + _NEGLIGIBLE), 0)

    def wait(self, priority: SendPriority, now: float) -> float:
        """Return how many seconds until there is a token for `use`; 0 when there is one."""
        missing = min(1.0 + self._reserve * priority, self._capacity) - self._refilled(now)
        return missing / self._rate if missing > _NEGLIGIBLE else 0.0

    def consume(self, now: float, tokens: int = 1) -> None:
        """Take tokens, on credit if need be, which never grows beyond the capacity."""
        self._level = max(self._refilled(now) - tokens, -self._capacity)
        self._seen = max(now, self._seen)

    def is_full(self, now: float) -> bool:
        """Tell whether the bucket is as good as new."""
        return self._refilled(now) >= self._capacity

    def _refilled(self, now: float) -> float:
        return min(self._capacity, self._level + max(now - self._seen, 0.0) * self._rate)


def strict_bucket(limit: float, seconds: float, *, now: float, reserve: float = 0.0) -> TokenBucket:
    """Return a bucket that gives at most `limit` tokens in any stretch of `seconds`, wherever it begins.

    What may come at once and what flows in meanwhile add up to the limit. A single token flows in a little
    slower than allowed, because calls do not travel equally fast.
    """
    burst = max(1.0, limit * _BURST)
    flow = (limit - burst) if limit > _SINGLE else min(limit, 1.0) * _SLOWER
    return TokenBucket(rate=flow / seconds, capacity=burst, reserve=burst * reserve, now=now)


@dataclass(slots=True, kw_only=True)
class _RoomState:
    """What a room has: `lenient` for final texts in good weather, the others for drafts and after a 429."""

    lenient: TokenBucket
    finals: TokenBucket
    drafts: TokenBucket
    minute: TokenBucket | None
    strict_until: float = float("-inf")

    @classmethod
    def new(cls, limits: ChannelLimits, now: float, *, is_group: bool) -> _RoomState:
        rate, minute = limits.room_sends_per_second, limits.room_sends_per_minute if is_group else 0
        return cls(
            lenient=TokenBucket(rate=rate, capacity=rate * _LENIENT_SECONDS, reserve=0.0, now=now),
            finals=strict_bucket(rate, 1.0, now=now),
            drafts=strict_bucket(rate, 2.0, now=now),
            minute=strict_bucket(minute, 60.0, now=now, reserve=RESERVE) if minute else None,
        )

    def buckets_for(self, priority: SendPriority) -> tuple[TokenBucket, ...]:
        shared = () if self.minute is None else (self.minute,)
        return (
            (self.lenient, self.finals, *shared) if priority is SendPriority.FINAL else (self.drafts, *shared)
        )

    def wait(self, priority: SendPriority, now: float) -> float:
        """Return the seconds until there is a token; a draft also waits out the second after a final text."""
        if priority is SendPriority.FINAL and now >= self.strict_until:
            return self.lenient.wait(priority, now)
        return max(
            self.finals.wait(SendPriority.FINAL, now),
            *(b.wait(priority, now) for b in self.buckets_for(priority)),
        )

    def is_idle(self, now: float) -> bool:
        """Tell whether it is as good as new."""
        buckets = {*self.buckets_for(SendPriority.FINAL), *self.buckets_for(SendPriority.EDIT)}
        return now >= self.strict_until and all(bucket.is_full(now) for bucket in buckets)


@dataclass(slots=True)
class _BotState:
    """What the platform has said lately: holds, and since when it is strict with the whole bot."""

    paused_until: dict[str | None, float] = field(default_factory=dict)
    rate_limited_at: dict[str, float] = field(default_factory=dict)
    strict_until: float = float("-inf")

    def record_rate_limit(self, room: str | None, until: float, now: float) -> None:
        """Remember a 429."""
        self.paused_until[room] = max(until, self.paused_until.get(room, until))
        if room is not None:
            self.rate_limited_at = {
                name: when for name, when in self.rate_limited_at.items() if when > now - _BOT_WIDE_SECONDS
            }
            self.rate_limited_at[room] = now
        if room is None or len(self.rate_limited_at) >= _BOT_WIDE_ROOMS:
            self.strict_until = now + STRICT_SECONDS

    def wait(self, room: str, now: float) -> float:
        """Return for how many seconds the room, or the whole bot, is still closed."""
        return max(self.paused_until.get(key, now) - now for key in (None, room))


IN_FLIGHT = 8
"""Messages on their way at once where the platform cannot tell whether it has one: at a kill each may be said
twice. So many answered in a quarter of a second come to 32 a second, about what such a platform takes."""


class RateLimiter:
    """What one bot may still do; rooms are named by `Address.destination`.

    The limit per minute is kept in rooms that are `crowded`, by that name.

    This is what one process knows; `delivery.chat.shared_rate_limit` adds what replicas have to share. A 429 is also kept as
    a hold in the store, for everybody.
    """

    def __init__(
        self,
        limits: ChannelLimits,
        *,
        is_group: Callable[[str], bool] = lambda _room: True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._limits = limits
        self._is_group = is_group
        self._clock = clock
        self._sleep = sleep
        self._account = strict_bucket(limits.account_sends_per_second, 1.0, now=clock(), reserve=RESERVE)
        self._rooms: dict[str, _RoomState] = {}
        self._bot_state = _BotState()
        self.in_flight = asyncio.Semaphore(IN_FLIGHT)

    async def drain(self) -> None:
        """Wait until none of the messages is on its way that might be said twice."""
        async with AsyncExitStack() as all_of_them:
            for _ in range(IN_FLIGHT):
                await all_of_them.enter_async_context(self.in_flight)

    def _room(self, name: str, now: float) -> _RoomState:
        if name not in self._rooms:
            self._evict_idle(now)
            self._rooms[name] = _RoomState.new(self._limits, now, is_group=self._is_group(name))
        return self._rooms[name]

    def _evict_idle(self, now: float) -> None:
        """Keep memory bounded: a full bucket and an ended hold say nothing."""
        if len(self._rooms) < _MAX_ROOMS:
            return
        self._rooms = {name: room for name, room in self._rooms.items() if not room.is_idle(now)}
        held = self._bot_state.paused_until
        self._bot_state.paused_until = {name: until for name, until in held.items() if until > now}

    def enforces_stated_limits(self, priority: SendPriority, room: str | None = None) -> bool:
        """Tell whether `use` keeps to the stated limits now: of the whole bot, or of a room."""
        until = self._bot_state.strict_until if room is None else self._room(room, self._clock()).strict_until
        return priority is not SendPriority.FINAL or self._clock() < until

    def wait(self, priority: SendPriority, room: str) -> float:
        """Return how many seconds until `use` in `room` is within the budget; 0: now."""
        now = self._clock()
        account = self._account.wait(priority, now) if self.enforces_stated_limits(priority) else 0.0
        return max(0.0, account, self._bot_state.wait(room, now), self._room(room, now).wait(priority, now))

    def try_acquire_local(self, priority: SendPriority, room: str) -> bool:
        """Take the tokens for `use` in `room` if they are there now."""
        if self.wait(priority, room) > 0:
            return False
        now = self._clock()
        for bucket in (self._account, *self._room(room, now).buckets_for(priority)):
            bucket.consume(now)
        return True

    async def try_acquire(self, priority: SendPriority, room: str) -> float:
        """Take the tokens if they are there now and return 0; else the seconds to wait."""
        return 0.0 if self.try_acquire_local(priority, room) else self.wait(priority, room)

    async def acquire(self, priority: SendPriority, room: str, *, timeout: float) -> float:
        """Take the tokens, waiting up to `at_most` seconds; return 0, or the seconds still to wait."""
        deadline = self._clock() + timeout
        while (wait := await self.try_acquire(priority, room)) > 0:
            if self._clock() + wait > deadline:
                return wait
            await self._sleep(wait)
        return 0.0

    def pause(self, seconds: float, *, room: str | None = None) -> None:
        """Close a room, or the whole bot, for so many seconds from now; a longer hold stands."""
        now = self._clock()
        self._bot_state.record_rate_limit(room, now + max(seconds, 0.0), now)
        if room is not None:
            self.enforce_stated_limits(STRICT_SECONDS, room=room)

    def enforce_stated_limits(self, seconds: float, *, room: str | None = None) -> None:
        """Keep to the stated limits for so many seconds: in a room, or with the whole bot."""
        until = self._clock() + seconds
        if room is None:
            self._bot_state.strict_until = max(self._bot_state.strict_until, until)
        else:
            state = self._room(room, self._clock())
            state.strict_until = max(state.strict_until, until)
