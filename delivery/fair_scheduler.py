"""Fair scheduling of a pool of places among accounts, as a pure data structure.

Every pool that several accounts share uses this class, directly or through `delivery.fair_gate`. The rule has
two parts.

- Ceiling: an account may hold at most `share` of the places that the other accounts do not hold, and always
  one. An account that is alone uses nearly the whole pool, but never the last places.
- Order: a free place goes to the waiting account that holds the fewest places. Among equals, it goes to the
  account whose last start is the longest ago, so one that asks for little does not wait for those that always
  ask. Work of one account starts in the order of arrival.

The ceiling is the dynamic threshold of Choudhury and Hahne ("Dynamic queue length thresholds for
shared-memory packet switches", 1998), with share / (1 - share) as its factor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

DEFAULT_SHARE = 0.875
"""The part of a pool that one account may hold when it is alone."""

SYSTEM = ""
"""The account of work that belongs to no account."""

MAX_TRACKED = 4096
"""Accounts whose last start is known; those that started before them count as new."""

_ROUNDING = 1e-9

Work = TypeVar("Work", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """The places of a pool, and the part of them that one account may hold."""

    places: int
    share: float = DEFAULT_SHARE

    def __post_init__(self) -> None:
        """Refuse a size with which no work could start."""
        if self.places < 1:
            raise ValueError(f"places is {self.places}; a pool needs at least 1")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; it must be more than 0 and at most 1")

    def ceiling(self, held_by_others: int = 0) -> int:
        """Return the most places that one account may hold while others hold this many."""
        return max(1, int(self.share * (self.places - held_by_others) + _ROUNDING))


class FairScheduler(Generic[Work]):
    """Decides which waiting work starts next. The caller starts it, and reports its end."""

    def __init__(self, size: PoolSize) -> None:
        self.size = size
        self._waiting: dict[str, dict[Work, None]] = {}
        self._held: defaultdict[str, int] = defaultdict(int)
        self._last_start: dict[str, int] = {}
        self._starts = count()
        self._used = 0

    @property
    def free(self) -> int:
        """Return how many places are free."""
        return self.size.places - self._used

    @property
    def used(self) -> int:
        """Return how many places are held."""
        return self._used

    def held(self, account: str) -> int:
        """Return how many places an account holds."""
        return self._held.get(account, 0)

    def waiting(self, account: str) -> int:
        """Return how much work of an account waits."""
        return len(self._waiting.get(account, ()))

    @property
    def has_waiting(self) -> bool:
        """Return whether work of any account waits."""
        return bool(self._waiting)

    def waiting_work(self) -> list[tuple[str, Work]]:
        """Return all work that waits, with its account."""
        return [(account, work) for account, line in self._waiting.items() for work in line]

    def add(self, account: str, work: Work) -> None:
        """Let work of an account wait for a place; work that waits already keeps its position."""
        line = self._waiting.get(account)
        if line is None:
            line = self._waiting[account] = {}
        line[work] = None

    def discard(self, account: str, work: Work) -> None:
        """Forget work that waits; does nothing if it does not."""
        line = self._waiting.get(account)
        if line is not None:
            line.pop(work, None)
            if not line:
                del self._waiting[account]

    def start_next(self) -> tuple[str, Work] | None:
        """Give a free place to the work that is next, and return it; None if nothing may start now."""
        candidates = [account for account in self._waiting if self.may_start(account)]
        if not candidates:
            return None
        account = min(candidates, key=lambda one: (self._held.get(one, 0), self._last_start.get(one, -1)))
        work = next(iter(self._waiting[account]))
        self.discard(account, work)
        self._start(account)
        return account, work

    def start_at_once(self, account: str) -> bool:
        """Give a free place to an account if no waiting account may have it; return whether it got one."""
        if account in self._waiting or not self.may_start(account) or any(map(self.may_start, self._waiting)):
            return False
        self._start(account)
        return True

    def _start(self, account: str) -> None:
        self._held[account] += 1
        self._used += 1
        self.record_start(account)

    def record_start(self, account: str) -> None:
        """Record that work of an account starts now; only work that takes no place is recorded by callers."""
        self._last_start.pop(account, None)
        self._last_start[account] = next(self._starts)
        if len(self._last_start) > MAX_TRACKED:
            del self._last_start[next(iter(self._last_start))]

    def finish(self, account: str) -> None:
        """Take back a place that an account held."""
        self._held[account] -= 1
        self._used -= 1
        if not self._held[account]:
            del self._held[account]

    def may_start(self, account: str) -> bool:
        """Return whether a place is free and the account is below its ceiling."""
        held = self._held.get(account, 0)
        return self._used < self.size.places and held < self.size.ceiling(self._used - held)
