"""An event loop that shares its time fairly among accounts.

asyncio runs callbacks in the order in which they become ready. If one account has a thousand tasks that
can continue, each step of another account waits for a thousand callbacks. In this loop the callbacks of each
account (`delivery.fair_gate.current_account` in their context) have a queue of their own, and the account
that has used the least time is served first. The callbacks of one account keep their order.

Callbacks of no account are run at once, in their order, like those of sockets, timers and threads. They
belong to what the accounts share. So do those in a block of `delivery.fair_gate.ahead_of_accounts`.

`FairTimeScheduler` decides whose callback is next. It is start-time fair queueing (Goyal, Vin and Cheng,
"Start-time fair queuing", 1997) with equal weights and a bounded credit:

- Virtual time is the used time of the account that was served last, and never goes back.
- An account whose queue was empty begins at its own time, but at most `head_start` seconds behind virtual
  time. So an account that asks for little is served before those that always have work, and unused time is
  not collected for later.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any, Generic, TypeVar, TypeVarTuple

from delivery.fair_gate import ahead_of_accounts, scheduling_account

HEAD_START_SECONDS = 0.05
"""The time of this loop by which an account that begins to work is ahead of those that always work."""

SLICE_SECONDS = 0.0005
"""Seconds after which sockets, timers and shared work are looked at, while callbacks of accounts wait."""

MAX_TRACKED = 4096
"""Accounts above which those without work are forgotten; they lose at most what they owe."""

_NO_ACCOUNT = Context()

Arguments = TypeVarTuple("Arguments")
Callback = TypeVar("Callback")
Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)


@dataclass(slots=True)
class AccountTime(Generic[Callback]):
    """The work of one account that waits, and the seconds that it has used, in virtual time."""

    used: float
    waiting: deque[Callback] = field(default_factory=deque)
    is_active: bool = False
    """Whether work waits or is being done."""


class FairTimeScheduler(Generic[Callback]):
    """Decides whose work is done next. The caller does it and reports how long it took."""

    def __init__(self, *, head_start: float) -> None:
        self._head_start = head_start
        self._accounts: dict[str, AccountTime[Callback]] = {}
        self.ready: list[tuple[float, int, AccountTime[Callback]]] = []
        """The accounts whose work `start_next` can return, as a heap by the time that they have used."""
        self._order = count()
        self._virtual_time = 0.0

    @property
    def tracked(self) -> int:
        """Return the number of accounts whose times are known."""
        return len(self._accounts)

    def add(self, account: str, work: Callback) -> None:
        """Let work of an account wait, behind its earlier work."""
        time = self._accounts.get(account) or self._track(account)
        time.waiting.append(work)
        if not time.is_active:
            time.is_active = True
            time.used = max(time.used, self._virtual_time - self._head_start)
            self._enqueue(time)

    def start_next(self) -> tuple[AccountTime[Callback], Callback]:
        """Return the next work with its account; call `finish` before the account's next work."""
        used, _order, account = heapq.heappop(self.ready)
        self._virtual_time = max(self._virtual_time, used)
        return account, account.waiting.popleft()

    def finish(self, account: AccountTime[Callback], seconds: float) -> None:
        """Add the seconds that work took to its account, and let the account's next work wait."""
        account.used += seconds
        account.is_active = bool(account.waiting)
        if account.is_active:
            self._enqueue(account)

    def _enqueue(self, account: AccountTime[Callback]) -> None:
        heapq.heappush(self.ready, (account.used, next(self._order), account))

    def _track(self, account: str) -> AccountTime[Callback]:
        if len(self._accounts) >= MAX_TRACKED:
            self._accounts = {name: one for name, one in self._accounts.items() if one.is_active}
        made = self._accounts[account] = AccountTime(self._virtual_time - self._head_start)
        return made


class FairEventLoop(asyncio.SelectorEventLoop):
    """A selector event loop that schedules callbacks fairly by account."""

    _is_fair = False
    """Whether callbacks of accounts wait in queues of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._is_fair = not self.get_debug()
        self._of_accounts = FairTimeScheduler[asyncio.Handle](head_start=HEAD_START_SECONDS)
        self._serves_accounts = False

    def set_debug(self, enabled: bool) -> None:  # noqa: FBT001 - asyncio's signature
        """Enable or disable asyncio's checks of callbacks, which need its own order."""
        super().set_debug(enabled)
        self._is_fair = not (enabled or self.is_closed())

    def close(self) -> None:
        """Close the loop: from now on asyncio refuses callbacks."""
        super().close()
        self._is_fair = False

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Run a callback when its account is next, behind the earlier callbacks of this account."""
        if context is None:
            context = copy_context()
        account = scheduling_account(context)
        if not account or not self._is_fair:
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._of_accounts.add(account, handle)
        if not self._serves_accounts:
            self._serve_accounts_soon()
        return handle

    async def sock_accept(self, sock: socket.socket) -> tuple[socket.socket, Any]:
        """Accept a connection; that the socket is watched no longer is not left to the account's queue.

        The loop could accept a second connection for the same call, and lose it.
        """
        with ahead_of_accounts():
            return await super().sock_accept(sock)

    async def subprocess_exec(
        self, protocol_factory: Callable[[], Protocol], *args: Any, **kwargs: Any
    ) -> tuple[asyncio.SubprocessTransport, Protocol]:
        """Start a process whose transport works for no account.

        asyncio reports the end of a process for no account, and expects that to come after the start.
        """
        with ahead_of_accounts():
            return await super().subprocess_exec(protocol_factory, *args, **kwargs)

    def _serve_accounts_soon(self) -> None:
        self._serves_accounts = True
        super().call_soon(self._serve_accounts, context=_NO_ACCOUNT)

    def _serve_accounts(self) -> None:
        """Run callbacks of accounts for one slice of time, and the others after what else is ready."""
        self._serves_accounts = False
        scheduler, ready = self._of_accounts, self._of_accounts.ready
        now = perf_counter()
        end = now + SLICE_SECONDS
        try:
            while ready and now < end:
                began, (account, handle) = now, scheduler.start_next()
                try:
                    if not handle.cancelled():
                        handle._run()  # noqa: SLF001 - how a loop runs a callback and reports its error
                finally:
                    now = perf_counter()
                    scheduler.finish(account, now - began)
        finally:
            if ready and not self._serves_accounts:
                self._serve_accounts_soon()
