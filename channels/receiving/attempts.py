"""Repeat calls that concern one room, so that its errors do not hold up the other rooms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from channels.errors import Ambiguous, ChannelError, RateLimited
from channels.receiving.status import BACKOFF_SECONDS

ATTEMPT_SECONDS = (0.2, 0.5)
"""Seconds before the second and third attempt of a call that concerns one room."""

SLOW_SECONDS = 5.0
"""A call that fails after a longer time is not repeated at once, because other rooms wait for it."""

_Result = TypeVar("_Result")

log = structlog.get_logger(__name__)


def concerns_one_room(error: ChannelError) -> bool:
    """Return whether the same call may succeed now for another room."""
    is_of_account = isinstance(error, RateLimited) and error.scope == "account"
    return error.remedy == "retry" and not is_of_account


async def attempt(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Return the result of a call, made up to three times if the platform fails quickly.

    Raises the ChannelError of the last attempt.
    """
    for wait in ATTEMPT_SECONDS:
        started = time.monotonic()
        try:
            return await call()
        except Ambiguous:
            if time.monotonic() - started > SLOW_SECONDS:
                raise
        await asyncio.sleep(wait)
    return await call()


async def repeat_when_limited(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Return the result of a call, made as slowly as the platform asks; raises any other ChannelError."""
    while True:
        try:
            return await call()
        except RateLimited as limit:
            await asyncio.sleep(limit.retry_after)


async def repeat_until_stored(store: Callable[[], Awaitable[bool]]) -> None:
    """Repeat a call until it returns True, after ever longer waits; a ChannelError counts as False."""
    failures = 0
    while True:
        try:
            if await store():
                return
        except ChannelError as error:
            log.warning("channel.update_delayed", error=str(error))
        await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
        failures += 1
