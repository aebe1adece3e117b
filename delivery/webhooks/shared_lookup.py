"""Share a lookup among those who ask for the same key before it begins.

The deliveries of a batch begin at once and need the same endpoint. A lookup that has begun is not shared: its
result may be older than the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from delivery.background import run_shielded

Result = TypeVar("Result")


class SharedLookup(Generic[Result]):
    """A lookup by key; one that has not begun yet is shared by everybody who asks for its key."""

    def __init__(self, look_up: Callable[[str], Awaitable[Result]]) -> None:
        self._look_up = look_up
        self._planned: dict[str, asyncio.Task[Result]] = {}

    async def get(self, key: str) -> Result:
        """Return the result for a key; raises what the lookup raises."""
        planned = self._planned.get(key)
        if planned is None:
            planned = self._planned[key] = asyncio.create_task(self._start_lookup(key))
        return await run_shielded(planned)  # a cancelled caller does not cancel it for others

    async def _start_lookup(self, key: str) -> Result:
        del self._planned[key]
        return await self._look_up(key)
