"""A bot's rate where several replicas speak for it: one allowance for all of them, drawn on in small batches.

    final texts, in good weather ── counted, and told now and then ──┐
    final texts, after a 429     ── a batch of tokens for those who wait ──▶ the allowance (a row; one bucket)
    drafts and typing            ── a token each, none of the reserve ──┘

So a final text costs a write only after a 429, and then one for several. Tokens that were drawn are used
within KEEP seconds or not at all, and the bucket is cut so that even the latest use of them keeps to the
limit. Without the database each replica keeps to its own budget.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from channels.port import ChannelLimits
from delivery.chat.rate_limit import (
    RESERVE,
    STRICT_SECONDS,
    RateLimiter,
    SendPriority,
    TokenBucket,
    strict_bucket,
)
from delivery.database.engine import DatabaseUnavailable

TOKEN_TTL_SECONDS = 0.25
"""Seconds for which drawn tokens are good."""

MAX_BATCH = 5
"""Tokens drawn at once at the most, and final texts after which they are told of."""

REPORT_SECONDS = 2.0
"""Seconds after which even a single final text is told of."""

_MIN_WAIT_SECONDS, _BATCH_WAIT_SECONDS = 0.02, 0.15
"""Seconds to wait at the least for the next token; for many who wait, until there are some for them."""

_MAX_ROOMS = 1024

NewBucket = Callable[[float], TokenBucket]
"""Make an allowance's bucket, at a moment of its clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """What a replica tells and asks: `spent` was used without asking, `want` tokens are wanted for `use`.

    `refused`: the platform has said that it was too much.
    """

    priority: SendPriority
    spent: int = 0
    wanted: int = 0
    rate_limited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrant:
    """What it gets: tokens, or the seconds until there is one; and for how long everybody is to be strict."""

    tokens: int = 0
    wait: float = 0.0
    strict_seconds: float = 0.0


class TokenBucketStore(Protocol):
    """Where allowances are kept for all replicas."""

    @abstractmethod
    async def acquire(self, name: str, request: TokenRequest, new_bucket: NewBucket) -> TokenGrant:
        """Meet a wish, one at a time for each name; raises Unavailable."""


def grant_tokens(
    bucket: TokenBucket, request: TokenRequest, *, now: float, strict_until: float
) -> tuple[TokenGrant, float]:
    """Meet a wish from a bucket; return what it gets, and until when everybody is to be strict (pure)."""
    if request.spent:
        bucket.consume(now, request.spent)
    if request.rate_limited:
        strict_until = max(strict_until, now + STRICT_SECONDS)
    tokens = min(request.wanted, bucket.available(request.priority, now))
    if tokens:
        bucket.consume(now, tokens)
    wait = bucket.wait(request.priority, now) if request.wanted and not tokens else 0.0
    return TokenGrant(tokens=tokens, wait=wait, strict_seconds=max(strict_until - now, 0.0)), strict_until


class LocalTokens:
    """What one replica has drawn from one allowance."""

    def __init__(
        self, name: str, new_bucket: NewBucket, store: TokenBucketStore, clock: Callable[[], float]
    ) -> None:
        self.rate_limited = False
        self.used_at = clock()
        self.strict_seconds = 0.0
        self._name = name
        self._new_bucket = new_bucket
        self._store = store
        self._clock = clock
        self._reported_at = float("-inf")
        self._spent = 0
        self._waiting = 0
        self._tokens: dict[SendPriority, tuple[int, float]] = {}
        self._empty_until: dict[SendPriority, float] = {}
        self._batch_sizes: dict[SendPriority, int] = {}
        self._lock = asyncio.Lock()

    async def consume(self, priority: SendPriority) -> None:
        """Use a token without asking, and tell of it when it is time."""
        self.used_at = self._clock()
        self._spent += 1
        if (
            self.rate_limited
            or self._spent >= MAX_BATCH
            or self.used_at - self._reported_at >= REPORT_SECONDS
        ):
            await self._exchange(TokenRequest(priority=priority))

    async def try_acquire(self, priority: SendPriority) -> float:
        """Use a token if there is one and return 0, else the seconds until there may be one."""
        self.used_at = self._clock()
        self._waiting += 1
        try:
            async with self._lock:
                return await self._try_acquire(priority)
        finally:
            self._waiting -= 1

    async def _try_acquire(self, priority: SendPriority) -> float:
        now = self._clock()
        tokens, good_until = self._tokens.get(priority, (0, now))
        if tokens and now < good_until:
            self._tokens[priority] = (tokens - 1, good_until)
            return 0.0
        if now < self._empty_until.get(priority, now):
            return self._empty_until[priority] - now
        want = self._next_batch_size(priority, in_time=now < good_until)
        grant = await self._exchange(TokenRequest(priority=priority, wanted=want))
        self._tokens[priority] = (grant.tokens - 1, now + TOKEN_TTL_SECONDS)
        if grant.tokens:
            return 0.0
        wait = max(grant.wait, _MIN_WAIT_SECONDS if want == 1 else _BATCH_WAIT_SECONDS)
        self._empty_until[priority] = now + wait
        return wait

    def _next_batch_size(self, priority: SendPriority, *, in_time: bool) -> int:
        """Return how many tokens to draw: for all who wait, and more when the last were used up in time."""
        more = 2 * self._batch_sizes.get(priority, 1) if in_time else 1
        self._batch_sizes[priority] = min(max(more, self._waiting), MAX_BATCH)
        return self._batch_sizes[priority]

    async def _exchange(self, request: TokenRequest) -> TokenGrant:
        """Exchange with the allowance; what could not be told is told the next time."""
        spent, self._spent = self._spent, 0
        refused, self.rate_limited = self.rate_limited, False
        self._reported_at = self._clock()
        try:
            grant = await self._store.acquire(
                self._name, replace(request, spent=spent, rate_limited=refused), self._new_bucket
            )
        except BaseException:
            self._spent += spent
            self.rate_limited = self.rate_limited or refused
            raise
        self.strict_seconds = grant.strict_seconds
        return grant


class SharedRateLimiter(RateLimiter):
    """The budget of one bot in one of several replicas; `name` is the bot's among all of them."""

    def __init__(self, limits: ChannelLimits, *, name: str, store: TokenBucketStore, **others: Any) -> None:
        super().__init__(limits, **others)
        self._name = name
        self._store = store
        self._bot_tokens = self._new_tokens("", limits.account_sends_per_second, 1.0)
        self._tokens_by_room: dict[str, LocalTokens] = {}

    def _new_tokens(self, room: str, limit: float, seconds: float) -> LocalTokens:
        def empty(now: float) -> TokenBucket:
            return strict_bucket(limit, seconds + TOKEN_TTL_SECONDS, now=now, reserve=RESERVE)

        return LocalTokens(f"{self._name} {room}".rstrip(), empty, self._store, self._clock)

    def _room_tokens(self, room: str) -> LocalTokens | None:
        """Return the purse of a crowded room, None for others: one replica at a time speaks there."""
        minute = self._limits.room_sends_per_minute
        if not minute or not self._is_group(room):
            return None
        if room not in self._tokens_by_room:
            self._evict_unused()
            self._tokens_by_room[room] = self._new_tokens(room, minute, 60.0)
        return self._tokens_by_room[room]

    def _evict_unused(self) -> None:
        if len(self._tokens_by_room) >= _MAX_ROOMS:
            old = self._clock() - STRICT_SECONDS
            self._tokens_by_room = {
                room: purse for room, purse in self._tokens_by_room.items() if purse.used_at > old
            }

    async def try_acquire(self, priority: SendPriority, room: str) -> float:
        """Take the tokens here and of the allowance if they are there now and return 0; else the wait."""
        if not self.try_acquire_local(priority, room):
            return max(self.wait(priority, room), _MIN_WAIT_SECONDS)
        try:
            return await self._acquire_shared(priority, room)
        except DatabaseUnavailable:
            return 0.0

    async def _acquire_shared(self, priority: SendPriority, room: str) -> float:
        wait = await self._acquire_from(
            self._bot_tokens, priority, strictly=self.enforces_stated_limits(priority)
        )
        if self._bot_tokens.strict_seconds:
            self.enforce_stated_limits(self._bot_tokens.strict_seconds)
        purse = self._room_tokens(room)
        if wait > 0 or purse is None:
            return wait
        wait = await self._acquire_from(purse, priority, strictly=self.enforces_stated_limits(priority, room))
        if purse.strict_seconds:
            self.enforce_stated_limits(purse.strict_seconds, room=room)
        return wait

    @staticmethod
    async def _acquire_from(tokens: LocalTokens, priority: SendPriority, *, strictly: bool) -> float:
        if strictly:
            return await tokens.try_acquire(priority)
        await tokens.consume(priority)
        return 0.0

    def pause(self, seconds: float, *, room: str | None = None) -> None:
        """Close a room, or the whole bot, for so many seconds; every replica becomes strict."""
        super().pause(seconds, room=room)
        purse = self._room_tokens(room) if room is not None else None
        if purse is not None:
            purse.rate_limited = True
        self._bot_tokens.rate_limited = self._bot_tokens.rate_limited or self.enforces_stated_limits(
            SendPriority.FINAL
        )
