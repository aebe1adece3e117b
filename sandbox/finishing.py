"""Work that is brought to its end though its caller is being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Returned = TypeVar("Returned")


async def finished(work: Awaitable[Returned]) -> Returned:
    """Await `work` to its end although we are being cancelled, then let the cancellation go on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # the cancellation is what counts now
        raise cancelled
    return task.result()
