"""A time-out for commands whose end is reported by a connection, and that counts only while we listen.

A process that was paused (SIGSTOP, a virtual machine that stands still) finds the time-out and the report of
the command's end at once. Its event loop would raise the time-out first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PAUSE_SECONDS = 0.25
"""A timer that is later than this belongs to an event loop that stood still."""

REPORT_SECONDS = 2.0
"""Seconds after a pause within which the report of a command's end is received."""


@asynccontextmanager
async def command_timeout(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError after `seconds`, like `asyncio.timeout`; after a pause, REPORT_SECONDS later."""
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    async with asyncio.timeout(None) as timeout:

        def expire() -> None:
            late = loop.time() - due > PAUSE_SECONDS
            timeout.reschedule(loop.time() + (REPORT_SECONDS if late else 0.0))

        timer = loop.call_at(due, expire)
        try:
            yield
        finally:
            timer.cancel()
