"""A bell that wakes one waiter: an asyncio.Event of a tenth of its size, for what every reader has."""

from __future__ import annotations

import asyncio


class LightEvent:
    """Rung while nobody waits it is forgotten: look at the state it stands for before waiting."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the one who waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next ring."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
