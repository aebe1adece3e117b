"""A gate before a shared pool: callers wait for a place, and places are scheduled fairly by account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, ContextVar
from functools import partial

from delivery.fair_scheduler import SYSTEM, FairScheduler, PoolSize

_ACCOUNT: ContextVar[str] = ContextVar("account", default=SYSTEM)
_IS_AHEAD: ContextVar[bool] = ContextVar("is_ahead", default=False)


def current_account() -> str:
    """Return the account for which the current task works; SYSTEM for work of the gateway itself."""
    return _ACCOUNT.get()


def set_current_account(account: str) -> None:
    """Set the account for which the current task works from now on, for example after authentication."""
    _ACCOUNT.set(account)


@contextmanager
def working_for(account: str) -> Iterator[None]:
    """Set the account for which the block works, in this task and in those that it starts."""
    token = _ACCOUNT.set(account)
    try:
        yield
    finally:
        _ACCOUNT.reset(token)


@contextmanager
def ahead_of_accounts() -> Iterator[None]:
    """Let the steps of this task run at once during the block, whichever account it works for.

    For short blocks in which the task holds what others wait for, such as the lock of the database's writer:
    they would wait for the account of this task too.
    """
    token = _IS_AHEAD.set(True)
    try:
        yield
    finally:
        _IS_AHEAD.reset(token)


def scheduling_account(context: Context) -> str:
    """Return the account by whose time a callback in this context is scheduled; SYSTEM: at once."""
    return SYSTEM if context.get(_IS_AHEAD) else context.get(_ACCOUNT, SYSTEM)


class FairGate:
    """Limits how many callers are inside at once. Use it in place of a semaphore."""

    def __init__(self, size: PoolSize) -> None:
        self._scheduler = FairScheduler[asyncio.Future[None]](size)

    @property
    def is_contended(self) -> bool:
        """Return whether a caller waits for a place."""
        return self._scheduler.has_waiting

    @property
    def used(self) -> int:
        """Return how many callers are inside."""
        return self._scheduler.used

    def resize(self, size: PoolSize) -> None:
        """Change the number of places; of those that are inside, nobody must leave."""
        self._scheduler.size = size
        self._grant()

    @asynccontextmanager
    async def hold(self, account: str | None = None, *, timeout: float | None = None) -> AsyncIterator[None]:
        """Hold a place during the block; see `enter`."""
        leave = await self.enter(account, timeout=timeout)
        try:
            yield
        finally:
            leave()

    async def enter(self, account: str | None = None, *, timeout: float | None = None) -> Callable[[], None]:
        """Wait for a place for `account`, else for the account of the current task.

        Returns the function that gives the place back; call it once. Raises TimeoutError if there is no place
        within `timeout` seconds.
        """
        account = current_account() if account is None else account
        if not self._scheduler.start_at_once(account):
            async with asyncio.timeout(timeout):
                await self._wait(account)
        return partial(self._leave, account)

    async def _wait(self, account: str) -> None:
        granted = asyncio.get_running_loop().create_future()
        self._scheduler.add(account, granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._scheduler.discard(account, granted)
            else:  # the place had been given already
                self._leave(account)
            raise

    def _leave(self, account: str) -> None:
        self._scheduler.finish(account)
        self._grant()

    def _grant(self) -> None:
        """Let in everybody who may enter; a caller that was cancelled gives its place back."""
        while (entry := self._scheduler.start_next()) is not None:
            account, granted = entry
            if granted.done():
                self._scheduler.finish(account)
            else:
                granted.set_result(None)
