"""Waiting for sends in progress leaves no task behind."""

from __future__ import annotations

import asyncio

import pytest

from delivery.workers.sends_in_flight import ConcurrentSends


async def test_a_cancelled_wait_leaves_no_task() -> None:
    """As when the lease of the destination is lost: asyncio would report a task that was destroyed."""
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(ConcurrentSends().wait_for_ends(asyncio.Event()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    left = asyncio.all_tasks() - before
    assert all(task.cancelling() for task in left), left
