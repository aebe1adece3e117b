"""The rate limit of a bot that several replicas share: one stored token bucket, used in small batches.

    final texts, normally    ── counted, reported from time to time ──┐
    final texts, after a 429 ── a batch of tokens for all waiters ────┼──▶ the stored bucket (a row)
    drafts and typing        ── one token each, not of the reserve ───┘

So a final text costs a write only after a 429, and then one write for several texts. Acquired tokens are used
within TOKEN_TTL_SECONDS or not at all, and the bucket is sized so that even their latest use is within the
limit. Without the database each replica applies only its own limits.
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
"""Seconds for which acquired tokens are valid."""

MAX_BATCH = 5
"""The most tokens that are acquired at once, and the number of final texts after which they are reported."""

REPORT_SECONDS = 2.0
"""Seconds after which even a single final text is reported."""

_MIN_WAIT_SECONDS, _BATCH_WAIT_SECONDS = 0.02, 0.15
"""The shortest wait for the next token in seconds, for one waiter and for several."""

_MAX_ROOMS = 1024

NewBucket = Callable[[float], TokenBucket]
"""Create a full bucket, at a moment of the store's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """A replica's request: `spent` tokens were used unasked, `wanted` tokens are wanted for `priority`.

    `rate_limited`: the platform has answered 429.
    """

    priority: SendPriority
    spent: int = 0
    wanted: int = 0
    rate_limited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrant:
    """The response: tokens, or the seconds until there is one, and how long to enforce the stated limits."""

    tokens: int = 0
    wait: float = 0.0
    strict_seconds: float = 0.0


class TokenBucketStore(Protocol):
    """The token buckets that all replicas share."""

    @abstractmethod
    async def acquire(self, name: str, request: TokenRequest, new_bucket: NewBucket) -> TokenGrant:
        """Answer a request, one at a time for each name; raises DatabaseUnavailable."""


def grant_tokens(
    bucket: TokenBucket, request: TokenRequest, *, now: float, strict_until: float
) -> tuple[TokenGrant, float]:
    """Return the grant for a request, and until when the stated limits are enforced; changes the bucket."""
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
    """The tokens that one replica has acquired from one shared bucket."""

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
        """Use a token without asking, and report it when a report is due."""
        self.used_at = self._clock()
        self._spent += 1
        if (
            self.rate_limited
            or self._spent >= MAX_BATCH
            or self.used_at - self._reported_at >= REPORT_SECONDS
        ):
            await self._exchange(TokenRequest(priority=priority))

    async def try_acquire(self, priority: SendPriority) -> float:
        """Use a token and return 0 if there is one; else return the seconds until there may be one."""
        self.used_at = self._clock()
        self._waiting += 1
        try:
            async with self._lock:
                return await self._try_acquire(priority)
        finally:
            self._waiting -= 1

    async def _try_acquire(self, priority: SendPriority) -> float:
        now = self._clock()
        tokens, valid_until = self._tokens.get(priority, (0, now))
        if tokens and now < valid_until:
            self._tokens[priority] = (tokens - 1, valid_until)
            return 0.0
        if now < self._empty_until.get(priority, now):
            return self._empty_until[priority] - now
        wanted = self._next_batch_size(priority, in_time=now < valid_until)
        grant = await self._exchange(TokenRequest(priority=priority, wanted=wanted))
        self._tokens[priority] = (grant.tokens - 1, now + TOKEN_TTL_SECONDS)
        if grant.tokens:
            return 0.0
        wait = max(grant.wait, _MIN_WAIT_SECONDS if wanted == 1 else _BATCH_WAIT_SECONDS)
        self._empty_until[priority] = now + wait
        return wait

    def _next_batch_size(self, priority: SendPriority, *, in_time: bool) -> int:
        """Return how many tokens to acquire: one per waiter, and more if the last batch was used in time."""
        size = 2 * self._batch_sizes.get(priority, 1) if in_time else 1
        self._batch_sizes[priority] = min(max(size, self._waiting), MAX_BATCH)
        return self._batch_sizes[priority]

    async def _exchange(self, request: TokenRequest) -> TokenGrant:
        """Send a request to the store; after an error the report is repeated with the next request."""
        spent, self._spent = self._spent, 0
        rate_limited, self.rate_limited = self.rate_limited, False
        self._reported_at = self._clock()
        try:
            grant = await self._store.acquire(
                self._name, replace(request, spent=spent, rate_limited=rate_limited), self._new_bucket
            )
        except BaseException:
            self._spent += spent
            self.rate_limited = self.rate_limited or rate_limited
            raise
        self.strict_seconds = grant.strict_seconds
        return grant


class SharedRateLimiter(RateLimiter):
    """The rate limits of one bot in one of several replicas; all of them use the same `name` for it."""

    def __init__(self, limits: ChannelLimits, *, name: str, store: TokenBucketStore, **others: Any) -> None:
        super().__init__(limits, **others)
        self._name = name
        self._store = store
        self._bot_tokens = self._new_tokens("", limits.account_sends_per_second, 1.0)
        self._tokens_by_room: dict[str, LocalTokens] = {}

    def _new_tokens(self, room: str, limit: float, seconds: float) -> LocalTokens:
        def new_bucket(now: float) -> TokenBucket:
            return strict_bucket(limit, seconds + TOKEN_TTL_SECONDS, now=now, reserve=RESERVE)

        return LocalTokens(f"{self._name} {room}".rstrip(), new_bucket, self._store, self._clock)

    def _room_tokens(self, room: str) -> LocalTokens | None:
        """Return the tokens of a group; None for other rooms, where one replica at a time sends."""
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
                room: tokens for room, tokens in self._tokens_by_room.items() if tokens.used_at > old
            }

    async def try_acquire(self, priority: SendPriority, room: str) -> float:
        """Take the local and the shared tokens and return 0 if they are available; else return the wait."""
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
        tokens = self._room_tokens(room)
        if wait > 0 or tokens is None:
            return wait
        strictly = self.enforces_stated_limits(priority, room)
        wait = await self._acquire_from(tokens, priority, strictly=strictly)
        if tokens.strict_seconds:
            self.enforce_stated_limits(tokens.strict_seconds, room=room)
        return wait

    @staticmethod
    async def _acquire_from(tokens: LocalTokens, priority: SendPriority, *, strictly: bool) -> float:
        if strictly:
            return await tokens.try_acquire(priority)
        await tokens.consume(priority)
        return 0.0

    def pause(self, seconds: float, *, room: str | None = None) -> None:
        """Pause a room, or the whole bot, for `seconds`; every replica then enforces the stated limits."""
        super().pause(seconds, room=room)
        tokens = self._room_tokens(room) if room is not None else None
        if tokens is not None:
            tokens.rate_limited = True
        self._bot_tokens.rate_limited = self._bot_tokens.rate_limited or self.enforces_stated_limits(
            SendPriority.FINAL
        )
