"""Queued work is taken fairly by account, and workers end once the queue is closed and empty."""

from __future__ import annotations

import asyncio

from delivery.fair_gate import current_account
from delivery.fair_queue import FairQueue
from delivery.fair_scheduler import PoolSize


async def _take_all(queue: FairQueue[str], taken: list[tuple[str, str]]) -> None:
    while True:
        async with queue.take() as entry:
            if entry is None:
                return
            assert current_account() == entry[0]
            taken.append(entry)
            await asyncio.sleep(0)


async def test_accounts_take_turns_and_workers_end() -> None:
    """One worker alternates between accounts; after `close` what waits is taken and new work is not."""
    queue, taken = FairQueue[str](PoolSize(places=1)), list[tuple[str, str]]()
    for number in range(3):
        queue.put("busy", f"b{number}")
    queue.put("busy", "b0")
    queue.put("quiet", "q")
    assert (queue.waiting("busy"), queue.waiting("quiet")) == (3, 1)
    queue.close()
    queue.put("quiet", "late")
    async with asyncio.timeout(60):
        await _take_all(queue, taken)
    assert taken == [("busy", "b0"), ("quiet", "q"), ("busy", "b1"), ("busy", "b2")]


async def test_a_cancelled_worker_takes_nothing_with_it() -> None:
    """Work that woke a worker which is cancelled at that moment wakes another one."""
    queue, taken = FairQueue[str](PoolSize(places=2)), list[tuple[str, str]]()
    first = asyncio.create_task(_take_all(queue, taken))
    await asyncio.sleep(0)
    second = asyncio.create_task(_take_all(queue, taken))
    await asyncio.sleep(0)
    queue.put("a", "work")
    first.cancel()
    async with asyncio.timeout(60):
        while not taken:  # noqa: ASYNC110 - the worker appends
            await asyncio.sleep(0)
        queue.close()
        await second
    assert taken == [("a", "work")]
