"""An event loop that shares its time fairly among accounts.

asyncio runs callbacks in the order in which they become ready. If one account has a thousand tasks that
can continue, each step of another account waits for a thousand callbacks. In this loop the callbacks of each
account (`delivery.fair_gate.current_account` in their context) have a queue of their own, and the account
that has used the least time is served first. The callbacks of one account keep their order.

Callbacks of no account are run at once, in their order, like those of sockets, timers and threads. They
belong to what the accounts share. So do those in a block of `delivery.fair_gate.ahead_of_accounts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from time import perf_counter
from typing import TypeVarTuple

from delivery.fair_gate import scheduling_account
from delivery.fair_time import FairTimeScheduler

HEAD_START_SECONDS = 0.05
"""The time of this loop by which an account that begins to work is ahead of those that always work."""

SLICE_SECONDS = 0.001
"""Seconds after which sockets, timers and shared work are looked at, while callbacks of accounts wait."""

_NO_ACCOUNT = Context()

Arguments = TypeVarTuple("Arguments")


class FairEventLoop(asyncio.SelectorEventLoop):
    """A selector event loop that schedules callbacks fairly by account."""

    def __init__(self) -> None:
        super().__init__()
        self._of_accounts = FairTimeScheduler[asyncio.Handle](head_start=HEAD_START_SECONDS)
        self._serves_accounts = False

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
        if not account or self.is_closed() or self.get_debug():
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._of_accounts.add(account, handle)
        if not self._serves_accounts:
            self._serve_accounts_soon()
        return handle

    def _serve_accounts_soon(self) -> None:
        self._serves_accounts = True
        super().call_soon(self._serve_accounts, context=_NO_ACCOUNT)

    def _serve_accounts(self) -> None:
        """Run callbacks of accounts for one slice of time, and the others after what else is ready."""
        self._serves_accounts = False
        queue = self._of_accounts
        now = perf_counter()
        end = now + SLICE_SECONDS
        try:
            while queue and now < end:
                began, (account, handle) = now, queue.start_next()
                try:
                    if not handle.cancelled():
                        handle._run()  # noqa: SLF001 - how a loop runs a callback and reports its error
                finally:
                    now = perf_counter()
                    queue.finish(account, now - began)
        finally:
            if queue and not self._serves_accounts:
                self._serve_accounts_soon()
