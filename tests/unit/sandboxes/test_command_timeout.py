"""The time-out of commands: it comes in time, and after a pause only when reports had time to arrive."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandbox.exec.command_timeout import PAUSE_SECONDS, command_timeout


async def test_a_command_without_an_end_is_late() -> None:
    """The time-out is raised, and only inside of its block."""
    with pytest.raises(TimeoutError):
        async with command_timeout(0.01):
            await asyncio.Event().wait()
    async with command_timeout(0.01):
        pass
    await asyncio.sleep(0.02)


async def test_a_report_that_waits_behind_a_pause_arrives() -> None:
    """An event loop that stood still reads what has come before the command counts as late."""
    loop, reported = asyncio.get_running_loop(), asyncio.Event()
    async with command_timeout(0.01):
        time.sleep(0.01 + PAUSE_SECONDS)  # noqa: ASYNC251 - the pause
        loop.call_later(0.01, reported.set)
        await reported.wait()


async def test_a_cancellation_stays_one() -> None:
    """A caller that is cancelled gets no TimeoutError."""
    waiting = asyncio.ensure_future(_wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()


async def _wait() -> None:
    async with command_timeout(60):
        await asyncio.Event().wait()
