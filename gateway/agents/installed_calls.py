"""Awaiting functions of installed packages: their errors are told apart from the gateway's cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class TimeLimitReached(Exception):
    """A function did not end within its time limit; its own TimeoutError is not this error."""


class UnrequestedCancellation(Exception):
    """A function raised CancelledError although nothing cancelled it: an error of the function."""


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled, so that its CancelledError must be raised on."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def await_installed(call: Awaitable[T], *, seconds: float | None) -> T:
    """Return the result of an installed function's call.

    Raises TimeLimitReached after `seconds`, UnrequestedCancellation, or what the function raises. A
    cancellation of the current task is raised as CancelledError.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeLimitReached(f"no answer within {seconds:g} s") from error
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise UnrequestedCancellation("it raised CancelledError, but nothing cancelled it") from error
