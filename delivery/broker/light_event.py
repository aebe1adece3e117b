"""An event that wakes one waiter: a tenth of the size of asyncio.Event, because every reader has one."""

from __future__ import annotations

import asyncio


class LightEvent:
    """An event for one waiter; `set` without a waiter has no effect, so check the state before waiting."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiter, if there is one."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next `set`."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
