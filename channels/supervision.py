"""Open a channel, run its receiver, and end both in time, whatever the library of the platform does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from channels.closing import CallsInProgress, closable
from channels.port import ChannelPlugin, ChannelState, Connection
from egress.guard import EgressGuard

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


async def run_until_first(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until the first one ends or the caller is cancelled, then cancel the others.

    Raises what the first one raised.
    """
    tasks = [asyncio.create_task(one) for one in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


@asynccontextmanager
async def open_channel(
    plugin: ChannelPlugin, channel_id: str, settings: Any, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    """Open a channel; at the end its connection refuses further calls, and those in progress may end."""
    async with plugin.open(channel_id, settings, state, guard) as connection:
        calls = CallsInProgress()
        try:
            yield closable(connection, calls)
        finally:
            await calls.close()
