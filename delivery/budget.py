"""The rate budget of one bot: what it may still say, in each room and in all.

Token buckets with floors. A bucket refills at the platform's rate up to its capacity; the last tokens are
kept back by importance: an edit of a draft needs one more than the reserve, typing two more, a final text
none. So whatever drafts do, a final text finds its token. A platform's "wait" (429) closes a room, or the
whole bot, until it is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import IntEnum

from channels.port import Limits


class Use(IntEnum):
    """What a token is wanted for; the number is how many tokens above the floor must be there."""

    FINAL = 0
    EDIT = 1
    TYPING = 2


class Bucket:
    """A token bucket on an injected clock: pure arithmetic, no waiting."""

    __slots__ = ("_capacity", "_level", "_rate", "_reserve", "_seen")

    def __init__(self, *, rate: float, capacity: float, reserve: float, now: float) -> None:
        self._rate = rate
        self._capacity = max(capacity, 1.0)
        self._reserve = min(reserve, self._capacity - 1.0)
        self._level = self._capacity
        self._seen = now

    def wait(self, use: Use, now: float) -> float:
        """Return how many seconds until there is a token for `use`; 0 when there is one."""
        needed = 1.0 if use is Use.FINAL else min(1.0 + self._reserve * use, self._capacity)
        missing = needed - self._refilled(now)
        return max(missing, 0.0) / self._rate if missing > _NEGLIGIBLE else 0.0

    def take(self, now: float) -> None:
        """Take a token; the caller has seen that there is one."""
        self._level = self._refilled(now) - 1.0
        self._seen = now

    def is_full(self, now: float) -> bool:
        """Tell whether the bucket is as good as new."""
        return self._refilled(now) >= self._capacity

    def _refilled(self, now: float) -> float:
        return min(self._capacity, self._level + max(now - self._seen, 0.0) * self._rate)


_NEGLIGIBLE = 1e-9
_ROOMS_KEPT = 1024


class Budget:
    """What one bot may still do; rooms are named by `Address.destination`.

    One budget per bot and process; a room is used by the one replica that holds its lease, and a 429 that
    gets through all the same is kept as a hold in the store for everybody.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._account = self._account_bucket(clock())
        self._rooms: dict[str, tuple[Bucket, ...]] = {}
        self._held: dict[str | None, float] = {}

    def _account_bucket(self, now: float) -> Bucket:
        rate = self._limits.account_sends_per_second
        return Bucket(rate=rate, capacity=rate, reserve=rate / 5, now=now)

    def _room_buckets(self, room: str) -> tuple[Bucket, ...]:
        if room not in self._rooms:
            now = self._clock()
            self._forget_idle(now)
            self._rooms[room] = self._new_room(now)
        return self._rooms[room]

    def _new_room(self, now: float) -> tuple[Bucket, ...]:
        rate, minute = self._limits.room_sends_per_second, self._limits.room_sends_per_minute
        second_bucket = Bucket(rate=rate, capacity=max(2.0, rate), reserve=max(1.0, rate / 5), now=now)
        if not minute:
            return (second_bucket,)
        return second_bucket, Bucket(rate=minute / 60, capacity=minute, reserve=max(1.0, minute / 4), now=now)

    def _forget_idle(self, now: float) -> None:
        """Keep memory bounded: a full bucket and an ended hold say nothing."""
        if len(self._rooms) < _ROOMS_KEPT:
            return
        busy = {
            room: buckets
            for room, buckets in self._rooms.items()
            if not all(bucket.is_full(now) for bucket in buckets)
        }
        self._rooms = busy
        self._held = {room: until for room, until in self._held.items() if until > now}

    def wait(self, use: Use, room: str) -> float:
        """Return how many seconds until `use` in `room` is within the budget; 0: now."""
        now = self._clock()
        holds = [self._held.get(key, now) - now for key in (None, room)]
        buckets = (self._account, *self._room_buckets(room))
        return max(0.0, *holds, *(bucket.wait(use, now) for bucket in buckets))

    def try_take(self, use: Use, room: str) -> bool:
        """Take the tokens for `use` in `room` if they are there now."""
        if self.wait(use, room) > 0:
            return False
        now = self._clock()
        for bucket in (self._account, *self._room_buckets(room)):
            bucket.take(now)
        return True

    async def take(self, use: Use, room: str, *, at_most: float) -> float:
        """Take the tokens, waiting up to `at_most` seconds; return 0, or the seconds still to wait."""
        deadline = self._clock() + at_most
        while not self.try_take(use, room):
            wait = self.wait(use, room)
            if self._clock() + wait > deadline:
                return wait
            await self._sleep(wait)
        return 0.0

    def hold(self, seconds: float, *, room: str | None = None) -> None:
        """Close a room, or the whole bot, for so many seconds from now; a longer hold stands."""
        until = self._clock() + max(seconds, 0.0)
        self._held[room] = max(until, self._held.get(room, until))
