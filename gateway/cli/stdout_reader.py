"""Whether what a command prints still has a reader, for commands that follow something."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

INTERVAL_SECONDS = 0.3
_STDOUT = 1


def stdout_is_read() -> bool:
    """Return whether stdout has a reader: a pipe has none after `head`, a terminal none after it hung up."""
    check = select.poll()
    check.register(_STDOUT, 0)  # errors are reported without being asked for
    return not any(found & (select.POLLERR | select.POLLHUP) for _, found in check.poll(0))


@asynccontextmanager
async def while_stdout_is_read() -> AsyncIterator[None]:
    """Raise BrokenPipeError inside when stdout has no reader any more, also if nothing is to be printed."""
    loop = asyncio.get_running_loop()
    following: asyncio.TimerHandle
    try:
        async with asyncio.timeout(None) as limit:

            def check() -> None:
                nonlocal following
                if stdout_is_read():
                    following = loop.call_later(INTERVAL_SECONDS, check)
                else:
                    limit.reschedule(loop.time())

            following = loop.call_later(INTERVAL_SECONDS, check)
            try:
                yield
            finally:
                following.cancel()
    except TimeoutError:
        if limit.expired():
            raise BrokenPipeError from None
        raise
