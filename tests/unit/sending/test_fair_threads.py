"""Threads are shared fairly by account, and a thread that cannot be stopped counts until it has ended."""

from __future__ import annotations

import asyncio
import threading

import pytest

from delivery.fair_gate import working_for
from delivery.fair_scheduler import PoolSize
from delivery.fair_threads import FairThreadPool


async def test_blocking_calls_of_one_account_leave_threads_to_others() -> None:
    """As the loop's default executor it holds one account to its share, also for callers that gave up."""
    hold, started = threading.Event(), list[str]()
    pool = FairThreadPool(PoolSize(places=4), name="test")
    asyncio.get_running_loop().set_default_executor(pool)

    def block(name: str) -> str:
        started.append(name)
        hold.wait(60)
        return name

    try:
        with working_for("busy"):
            calls = [asyncio.create_task(asyncio.to_thread(block, f"busy{number}")) for number in range(20)]
        async with asyncio.timeout(60):
            while len(started) < 3:  # noqa: ASYNC110 - other threads append
                await asyncio.sleep(0.01)
            for call in calls[:3]:
                call.cancel()
            with working_for("quiet"):
                assert await asyncio.to_thread(len, "four") == 4
        assert len(started) == 3
        hold.set()
        async with asyncio.timeout(60):
            assert await asyncio.gather(*calls[3:]) == [f"busy{number}" for number in range(3, 20)]
    finally:
        hold.set()


async def test_errors_reach_the_caller() -> None:
    """A call that raises fails its caller only."""
    asyncio.get_running_loop().set_default_executor(FairThreadPool(PoolSize(places=2), name="test"))
    with pytest.raises(ValueError, match="invalid literal"):
        await asyncio.to_thread(int, "x")
    assert await asyncio.to_thread(int, "7") == 7


async def test_a_pool_that_is_shut_down_cancels_what_waits() -> None:
    """No caller waits for ever for a call that will never run."""
    hold = threading.Event()
    pool = FairThreadPool(PoolSize(places=1), name="test")
    running = pool.submit(hold.wait, 60)
    waiting = [pool.submit(int) for _ in range(3)]
    pool.shutdown(wait=False)
    hold.set()
    assert running.result(60)
    async with asyncio.timeout(60):
        while not all(one.cancelled() for one in waiting):  # noqa: ASYNC110 - another thread cancels
            await asyncio.sleep(0.01)
