"""Fair sharing of one thread's time among accounts, as a pure data structure.

Each account has a queue. The account that has used the least time is served next, and the time that its work
took is added to what it has used. This is start-time fair queueing (Goyal, Vin and Cheng, "Start-time fair
queuing", 1997) with equal weights and a bounded credit:

- Virtual time is the used time of the account that was served last, and never goes back.
- An account whose queue was empty begins at its own time, but at most `head_start` seconds behind virtual
  time. So an account that asks for little is served before those that always have work, and unused time is
  not collected for later.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

Work = TypeVar("Work")

MAX_TRACKED = 4096
"""Accounts above which those without work are forgotten; they lose at most what they owe."""


@dataclass(slots=True)
class AccountTime(Generic[Work]):
    """The work of one account that waits, and the seconds that it has used, in virtual time."""

    used: float
    waiting: deque[Work] = field(default_factory=deque)
    is_active: bool = False
    """Whether work waits or is being done."""


class FairTimeScheduler(Generic[Work]):
    """Decides whose work is done next. The caller does it and reports how long it took."""

    def __init__(self, *, head_start: float) -> None:
        self._head_start = head_start
        self._accounts: dict[str, AccountTime[Work]] = {}
        self._queue: list[tuple[float, int, AccountTime[Work]]] = []
        self._order = count()
        self._virtual_time = 0.0

    def __bool__(self) -> bool:
        """Return whether work waits that `start_next` can return."""
        return bool(self._queue)

    @property
    def tracked(self) -> int:
        """Return the number of accounts whose times are known."""
        return len(self._accounts)

    def add(self, account: str, work: Work) -> None:
        """Let work of an account wait, behind its earlier work."""
        time = self._accounts.get(account) or self._track(account)
        time.waiting.append(work)
        if not time.is_active:
            time.is_active = True
            time.used = max(time.used, self._virtual_time - self._head_start)
            self._enqueue(time)

    def start_next(self) -> tuple[AccountTime[Work], Work]:
        """Return the next work with its account; call `finish` before the account's next work."""
        used, _order, account = heapq.heappop(self._queue)
        self._virtual_time = max(self._virtual_time, used)
        return account, account.waiting.popleft()

    def finish(self, account: AccountTime[Work], seconds: float) -> None:
        """Add the seconds that work took to its account, and let the account's next work wait."""
        account.used += seconds
        account.is_active = bool(account.waiting)
        if account.is_active:
            self._enqueue(account)

    def _enqueue(self, account: AccountTime[Work]) -> None:
        heapq.heappush(self._queue, (account.used, next(self._order), account))

    def _track(self, account: str) -> AccountTime[Work]:
        if len(self._accounts) >= MAX_TRACKED:
            self._accounts = {name: one for name, one in self._accounts.items() if one.is_active}
        made = self._accounts[account] = AccountTime(self._virtual_time - self._head_start)
        return made
