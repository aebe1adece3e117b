"""Finish work even if its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Returned = TypeVar("Returned")
Cancellation = asyncio.CancelledError | None


async def shielded_outcome(work: Awaitable[Returned]) -> tuple[Returned, Cancellation]:
    """Await `work` until its end even if the caller is cancelled; return its result and the cancellation.

    A caller that gets a cancellation raises it after handling the result. If the work fails and the caller is
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
    """Await `work` until its end even if the caller is cancelled, then raise the cancellation."""
    result, stopped = await shielded_outcome(work)
    if stopped is not None:
        raise stopped
    return result


async def shielded_call(
    executor: Executor | None, function: Callable[[*Arguments], Returned], *args: *Arguments
) -> Returned:
    """Call a function that blocks in a thread of an executor, or of the loop's default one.

    A cancellation is raised after the end of the call.
    """
    return await shielded(asyncio.get_running_loop().run_in_executor(executor, partial(function, *args)))


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task unless it is done, and wait for its end; its result is not read."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
