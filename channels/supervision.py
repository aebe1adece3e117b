"""Run a receiver's loop and end it in time, even if something swallows the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

GRACE_SECONDS = 0.8
"""Seconds a cancelled receiver may take to end; the port allows one second in all."""


async def supervise(coroutine: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run the coroutine until it ends or the caller is cancelled; then set `stop` and wait GRACE_SECONDS.

    The coroutine runs in a task of its own. On Python 3.11 a library may swallow a cancellation; then the
    `stop` flag ends the loop, and this function still returns in time.
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
