"""How an inbox's work is kept: ended in time, whatever becomes of the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

GRACE_SECONDS = 0.8
"""Seconds a cancelled reception may take to end; the port allows one in all."""


async def supervise(coroutine: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Do the work until it ends or we are cancelled; then set `stop`, and give it GRACE to end.

    The work is a task of its own: on Python 3.11 something below may swallow a cancellation, and then the
    flag ends its loop, while this returns in time.
    """
    task = asyncio.create_task(coroutine)
    try:
        await asyncio.wait({task})
    finally:
        stop.set()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
    task.result()
