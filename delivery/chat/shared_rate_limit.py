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

from channels.port import Limits
from delivery.chat.rate_limit import RESERVE, STRICT_SECONDS, Bucket, Budget, Use, strict
from delivery.database.engine import Unavailable

KEEP = 0.25
"""Seconds for which drawn tokens are good."""

BATCH = 5
"""Tokens drawn at once at the most, and final texts after which they are told of."""

TOLD_EVERY = 2.0
"""Seconds after which even a single final text is told of."""

_LEAST, _GATHER = 0.02, 0.15
"""Seconds to wait at the least for the next token; for many who wait, until there are some for them."""

_PURSES_KEPT = 1024

Emptied = Callable[[float], Bucket]
"""Make an allowance's bucket, at a moment of its clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a replica tells and asks: `spent` was used without asking, `want` tokens are wanted for `use`.

    `refused`: the platform has said that it was too much.
    """

    use: Use
    spent: int = 0
    want: int = 0
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What it gets: tokens, or the seconds until there is one; and for how long everybody is to be strict."""

    tokens: int = 0
    wait: float = 0.0
    strict: float = 0.0


class Allowances(Protocol):
    """Where allowances are kept for all replicas."""

    @abstractmethod
    async def draw(self, name: str, wish: Wish, empty: Emptied) -> Grant:
        """Meet a wish, one at a time for each name; raises Unavailable."""


def settle(bucket: Bucket, wish: Wish, *, now: float, strict_until: float) -> tuple[Grant, float]:
    """Meet a wish from a bucket; return what it gets, and until when everybody is to be strict (pure)."""
    if wish.spent:
        bucket.take(now, wish.spent)
    if wish.refused:
        strict_until = max(strict_until, now + STRICT_SECONDS)
    tokens = min(wish.want, bucket.most(wish.use, now))
    if tokens:
        bucket.take(now, tokens)
    wait = bucket.wait(wish.use, now) if wish.want and not tokens else 0.0
    return Grant(tokens=tokens, wait=wait, strict=max(strict_until - now, 0.0)), strict_until


class Purse:
    """What one replica has drawn from one allowance."""

    def __init__(self, name: str, empty: Emptied, allowances: Allowances, clock: Callable[[], float]) -> None:
        self.refused = False
        self.used_at = clock()
        self.strict = 0.0
        self._name = name
        self._empty = empty
        self._allowances = allowances
        self._clock = clock
        self._told_at = float("-inf")
        self._spent = 0
        self._waiting = 0
        self._tokens: dict[Use, tuple[int, float]] = {}
        self._closed: dict[Use, float] = {}
        self._batch: dict[Use, int] = {}
        self._lock = asyncio.Lock()

    async def spend(self, use: Use) -> None:
        """Use a token without asking, and tell of it when it is time."""
        self.used_at = self._clock()
        self._spent += 1
        if self.refused or self._spent >= BATCH or self.used_at - self._told_at >= TOLD_EVERY:
            await self._draw(Wish(use=use))

    async def ask(self, use: Use) -> float:
        """Use a token if there is one and return 0, else the seconds until there may be one."""
        self.used_at = self._clock()
        self._waiting += 1
        try:
            async with self._lock:
                return await self._take(use)
        finally:
            self._waiting -= 1

    async def _take(self, use: Use) -> float:
        now = self._clock()
        tokens, good_until = self._tokens.get(use, (0, now))
        if tokens and now < good_until:
            self._tokens[use] = (tokens - 1, good_until)
            return 0.0
        if now < self._closed.get(use, now):
            return self._closed[use] - now
        want = self._wanted(use, in_time=now < good_until)
        grant = await self._draw(Wish(use=use, want=want))
        self._tokens[use] = (grant.tokens - 1, now + KEEP)
        if grant.tokens:
            return 0.0
        wait = max(grant.wait, _LEAST if want == 1 else _GATHER)
        self._closed[use] = now + wait
        return wait

    def _wanted(self, use: Use, *, in_time: bool) -> int:
        """Return how many tokens to draw: for all who wait, and more when the last were used up in time."""
        more = 2 * self._batch.get(use, 1) if in_time else 1
        self._batch[use] = min(max(more, self._waiting), BATCH)
        return self._batch[use]

    async def _draw(self, wish: Wish) -> Grant:
        """Exchange with the allowance; what could not be told is told the next time."""
        spent, self._spent = self._spent, 0
        refused, self.refused = self.refused, False
        self._told_at = self._clock()
        try:
            grant = await self._allowances.draw(
                self._name, replace(wish, spent=spent, refused=refused), self._empty
            )
        except BaseException:
            self._spent += spent
            self.refused = self.refused or refused
            raise
        self.strict = grant.strict
        return grant


class SharedBudget(Budget):
    """The budget of one bot in one of several replicas; `name` is the bot's among all of them."""

    def __init__(self, limits: Limits, *, name: str, allowances: Allowances, **others: Any) -> None:
        super().__init__(limits, **others)
        self._name = name
        self._allowances = allowances
        self._all = self._open("", limits.account_sends_per_second, 1.0)
        self._purses: dict[str, Purse] = {}

    def _open(self, room: str, limit: float, seconds: float) -> Purse:
        def empty(now: float) -> Bucket:
            return strict(limit, seconds + KEEP, now=now, reserve=RESERVE)

        return Purse(f"{self._name} {room}".rstrip(), empty, self._allowances, self._clock)

    def _purse(self, room: str) -> Purse | None:
        """Return the purse of a crowded room, None for others: one replica at a time speaks there."""
        minute = self._limits.room_sends_per_minute
        if not minute or not self._crowded(room):
            return None
        if room not in self._purses:
            self._forget_unused()
            self._purses[room] = self._open(room, minute, 60.0)
        return self._purses[room]

    def _forget_unused(self) -> None:
        if len(self._purses) >= _PURSES_KEPT:
            old = self._clock() - STRICT_SECONDS
            self._purses = {room: purse for room, purse in self._purses.items() if purse.used_at > old}

    async def ask(self, use: Use, room: str) -> float:
        """Take the tokens here and of the allowance if they are there now and return 0; else the wait."""
        if not self.try_take(use, room):
            return max(self.wait(use, room), _LEAST)
        try:
            return await self._ask_all(use, room)
        except Unavailable:
            return 0.0

    async def _ask_all(self, use: Use, room: str) -> float:
        wait = await self._draw_on(self._all, use, strictly=self.is_strict(use))
        if self._all.strict:
            self.be_strict(self._all.strict)
        purse = self._purse(room)
        if wait > 0 or purse is None:
            return wait
        wait = await self._draw_on(purse, use, strictly=self.is_strict(use, room))
        if purse.strict:
            self.be_strict(purse.strict, room=room)
        return wait

    @staticmethod
    async def _draw_on(purse: Purse, use: Use, *, strictly: bool) -> float:
        if strictly:
            return await purse.ask(use)
        await purse.spend(use)
        return 0.0

    def hold(self, seconds: float, *, room: str | None = None) -> None:
        """Close a room, or the whole bot, for so many seconds; every replica becomes strict."""
        super().hold(seconds, room=room)
        purse = self._purse(room) if room is not None else None
        if purse is not None:
            purse.refused = True
        self._all.refused = self._all.refused or self.is_strict(Use.FINAL)
