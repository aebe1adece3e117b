"""The rate limits of one bot, in each chat and in total.

Token buckets are sized so that no interval exceeds the platform's stated limit. Drafts (edits, typing) always
respect them and leave a reserve: an edit needs the reserve and one token, typing twice the reserve and one
token. So a final text always finds a token, whatever drafts do.

Final texts may exceed the stated limits in bursts for as long as the platform accepts them, because stated
limits are averages. After a 429 the chat (or the whole bot) is paused for as long as the platform asks, and
the stated limits are enforced there for ten minutes. 429s in several chats at once count as a limit of the
whole bot. So a limit is exceeded once, not repeatedly. A "room" is one chat, named by `Address.destination`.
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
"""Seconds for which the stated limits are enforced after a 429."""

_BURST, _SINGLE, _SLOWER = 0.4, 1.5, 0.95
_LENIENT_SECONDS = 5.0
RESERVE = 0.25
"""The share of a bucket's capacity that drafts leave to final texts."""

_NEGLIGIBLE = 1e-9
_MAX_ROOMS = 1024
_BOT_WIDE_ROOMS, _BOT_WIDE_SECONDS = 3, 5.0


class SendPriority(IntEnum):
    """The purpose of a token; the value is the number of reserves that must remain."""

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
        """The level at the last change and its time: the arguments of `restore`."""
        return self._level, self._seen

    def restore(self, level: float, seen: float) -> Self:
        """Continue from a stored state; return the bucket."""
        self._level, self._seen = min(level, self._capacity), seen
        return self

    def available(self, priority: SendPriority, now: float) -> int:
        """Return the number of tokens that are available for `priority` now."""
        free = self._refilled(now) - min(self._reserve * priority, self._capacity - 1.0)
        return max(int(free + _NEGLIGIBLE), 0)

    def wait(self, priority: SendPriority, now: float) -> float:
        """Return the seconds until a token is available for `priority`; 0: now."""
        missing = min(1.0 + self._reserve * priority, self._capacity) - self._refilled(now)
        return missing / self._rate if missing > _NEGLIGIBLE else 0.0

    def consume(self, now: float, tokens: int = 1) -> None:
        """Take tokens; the level may become negative, down to minus the capacity."""
        self._level = max(self._refilled(now) - tokens, -self._capacity)
        self._seen = max(now, self._seen)

    def is_full(self, now: float) -> bool:
        """Return whether the bucket is full."""
        return self._refilled(now) >= self._capacity

    def _refilled(self, now: float) -> float:
        return min(self._capacity, self._level + max(now - self._seen, 0.0) * self._rate)


def strict_bucket(limit: float, seconds: float, *, now: float, reserve: float = 0.0) -> TokenBucket:
    """Return a bucket that grants at most `limit` tokens in any interval of `seconds`.

    The burst and the refill during the interval add up to the limit. A single token refills slightly slower
    than allowed, because the latency of calls varies.
    """
    burst = max(1.0, limit * _BURST)
    flow = (limit - burst) if limit > _SINGLE else min(limit, 1.0) * _SLOWER
    return TokenBucket(rate=flow / seconds, capacity=burst, reserve=burst * reserve, now=now)


@dataclass(slots=True, kw_only=True)
class _RoomState:
    """The buckets of one room: `lenient` for final texts, the others for drafts and after a 429."""

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
        """Return the seconds until a token is available; a draft also waits a second after a final text."""
        if priority is SendPriority.FINAL and now >= self.strict_until:
            return self.lenient.wait(priority, now)
        return max(
            self.finals.wait(SendPriority.FINAL, now),
            *(bucket.wait(priority, now) for bucket in self.buckets_for(priority)),
        )

    def is_idle(self, now: float) -> bool:
        """Return whether all buckets are full and no stated limit is enforced."""
        buckets = {*self.buckets_for(SendPriority.FINAL), *self.buckets_for(SendPriority.EDIT)}
        return now >= self.strict_until and all(bucket.is_full(now) for bucket in buckets)


@dataclass(slots=True)
class _BotState:
    """The recent rate limits of the platform: pauses, and until when the whole bot's limit is enforced."""

    paused_until: dict[str | None, float] = field(default_factory=dict)
    rate_limited_at: dict[str, float] = field(default_factory=dict)
    strict_until: float = float("-inf")

    def record_rate_limit(self, room: str | None, until: float, now: float) -> None:
        """Record a 429."""
        self.paused_until[room] = max(until, self.paused_until.get(room, until))
        if room is not None:
            self.rate_limited_at = {
                name: when for name, when in self.rate_limited_at.items() if when > now - _BOT_WIDE_SECONDS
            }
            self.rate_limited_at[room] = now
        if room is None or len(self.rate_limited_at) >= _BOT_WIDE_ROOMS:
            self.strict_until = now + STRICT_SECONDS

    def wait(self, room: str, account: str | None, now: float) -> float:
        """Return the seconds for which the room, its account or the whole bot is paused."""
        return max(self.paused_until.get(key, now) - now for key in (None, account, room))


IN_FLIGHT = 8
"""Messages in flight at once on platforms that cannot look up a message; a kill may send each of them twice.

With responses after a quarter of a second this allows 32 a second, about the limit of such a platform.
"""


class RateLimiter:
    """The rate limits of one bot in one process; rooms are named by `Address.destination`.

    The limit per minute applies to rooms for which `is_group` is true. `account_of` names the account at the
    platform whose limits a room shares, "" if the bot has one account.

    `delivery.chat.shared_rate_limit` adds the limits that replicas share. A 429 is also stored as a pause of
    the destination, which applies to all replicas.
    """

    def __init__(
        self,
        limits: ChannelLimits,
        *,
        is_group: Callable[[str], bool] = lambda _room: True,
        account_of: Callable[[str], str] = lambda _room: "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._limits = limits
        self._is_group = is_group
        self._account_of = account_of
        self._clock = clock
        self._sleep = sleep
        self._account = strict_bucket(limits.account_sends_per_second, 1.0, now=clock(), reserve=RESERVE)
        self._rooms: dict[str, _RoomState] = {}
        self._bot_state = _BotState()
        self.in_flight = asyncio.Semaphore(IN_FLIGHT)

    async def drain(self) -> None:
        """Wait until no message is in flight that a kill could send twice."""
        async with AsyncExitStack() as slots:
            for _ in range(IN_FLIGHT):
                await slots.enter_async_context(self.in_flight)

    def _room(self, name: str, now: float) -> _RoomState:
        if name not in self._rooms:
            self._evict_idle(now)
            self._rooms[name] = _RoomState.new(self._limits, now, is_group=self._is_group(name))
        return self._rooms[name]

    def _evict_idle(self, now: float) -> None:
        """Remove idle rooms and ended pauses, to bound the memory."""
        if len(self._rooms) < _MAX_ROOMS:
            return
        self._rooms = {name: room for name, room in self._rooms.items() if not room.is_idle(now)}
        pauses = self._bot_state.paused_until
        self._bot_state.paused_until = {name: until for name, until in pauses.items() if until > now}

    def enforces_stated_limits(self, priority: SendPriority, room: str | None = None) -> bool:
        """Return whether the stated limits apply to `priority` now, for the whole bot or for a room."""
        until = self._bot_state.strict_until if room is None else self._room(room, self._clock()).strict_until
        return priority is not SendPriority.FINAL or self._clock() < until

    def wait(self, priority: SendPriority, room: str) -> float:
        """Return the seconds until a call of `priority` in `room` is within the limits; 0: now."""
        now = self._clock()
        account = self._account.wait(priority, now) if self.enforces_stated_limits(priority) else 0.0
        pause = self._bot_state.wait(room, self._account_key(room), now)
        return max(0.0, account, pause, self._room(room, now).wait(priority, now))

    def try_acquire_local(self, priority: SendPriority, room: str) -> bool:
        """Take the tokens for a call in `room` if they are available; return whether they were."""
        if self.wait(priority, room) > 0:
            return False
        now = self._clock()
        for bucket in (self._account, *self._room(room, now).buckets_for(priority)):
            bucket.consume(now)
        return True

    async def try_acquire(self, priority: SendPriority, room: str) -> float:
        """Take the tokens and return 0 if they are available; else return the seconds to wait."""
        return 0.0 if self.try_acquire_local(priority, room) else self.wait(priority, room)

    async def acquire(self, priority: SendPriority, room: str, *, timeout: float) -> float:
        """Take the tokens, waiting up to `timeout` seconds; return 0, or the seconds still to wait."""
        deadline = self._clock() + timeout
        while (wait := await self.try_acquire(priority, room)) > 0:
            if self._clock() + wait > deadline:
                return wait
            await self._sleep(wait)
        return 0.0

    def pause(self, seconds: float, *, room: str | None = None) -> None:
        """Pause a room, or the whole bot, for `seconds` from now; a longer pause is not shortened."""
        now = self._clock()
        self._bot_state.record_rate_limit(room, now + max(seconds, 0.0), now)
        if room is not None:
            self.enforce_stated_limits(STRICT_SECONDS, room=room)

    def pause_account(self, seconds: float, *, of: str) -> None:
        """Pause the rooms of a room's account: the whole bot, unless it has several accounts."""
        account, now = self._account_key(of), self._clock()
        if account is None:
            self.pause(seconds)
        else:
            self._bot_state.record_rate_limit(account, now + max(seconds, 0.0), now)

    def _account_key(self, room: str) -> str | None:
        account = self._account_of(room)
        return f"account {account}" if account else None

    def enforce_stated_limits(self, seconds: float, *, room: str | None = None) -> None:
        """Enforce the stated limits for `seconds`, in a room or for the whole bot."""
        until = self._clock() + seconds
        if room is None:
            self._bot_state.strict_until = max(self._bot_state.strict_until, until)
        else:
            state = self._room(room, self._clock())
            state.strict_until = max(state.strict_until, until)
