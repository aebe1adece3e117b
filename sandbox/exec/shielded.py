"""Work that is brought to its end though its caller is being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Returned = TypeVar("Returned")
Cancellation = asyncio.CancelledError | None


async def shielded_outcome(work: Awaitable[Returned]) -> tuple[Returned, Cancellation]:
    """Await `work` to its end although we are being cancelled; return what came of it, and the cancellation.

    Whoever is given one raises it, after what the outcome makes necessary. Where the work fails and we are
    cancelled, the cancellation is raised.
    """
    task = asyncio.ensure_future(work)
    stopped: Cancellation = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            stopped = error
    if stopped is not None and (task.cancelled() or task.exception() is not None):
        raise stopped
    return task.result(), stopped


async def shielded(work: Awaitable[Returned]) -> Returned:
    """Await `work` to its end although we are being cancelled, then let the cancellation go on."""
    result, stopped = await shielded_outcome(work)
    if stopped is not None:
        raise stopped
    return result
