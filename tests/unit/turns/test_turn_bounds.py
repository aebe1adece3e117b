"""The bounds of a turn: the first one that is reached ends it, and what it runs has then ended too."""

from __future__ import annotations

import asyncio

import pytest

from delivery.broker.leases.held_lease import HeldLease
from delivery.errors import DeliveryError
from gateway.turns.bounds import Drained, DrainedTurns, TurnBounds, TurnCancelled


class Work:
    """An agent that runs until `finish` is set."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.finish = asyncio.Event()
        self.has_ended = False

    async def run(self) -> None:
        """Wait for the end."""
        self.begun.set()
        try:
            await self.finish.wait()
        finally:
            await asyncio.sleep(0)
            self.has_ended = True


def lease() -> HeldLease:
    """Return a lease that is held."""
    held = HeldLease("t:cnv_1", "lease.t.1", 6.0)
    held.extend(1, float("inf"))
    return held


async def begin(bounds: TurnBounds, work: Work, held: HeldLease) -> asyncio.Task[None]:
    """Run work within bounds until it has begun."""
    running = asyncio.create_task(bounds.run(work.run(), held))
    await work.begun.wait()
    return running


async def test_work_that_ends_by_itself_ends_the_wait() -> None:
    """Its error is raised as it is, and a bound that is reached later changes nothing."""
    bounds, work = TurnBounds(), Work()
    bounds.reach_after(3600, TimeoutError())
    running = await begin(bounds, work, lease())
    work.finish.set()
    await running
    bounds.cancel()

    async def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await TurnBounds().run(fail(), lease())


@pytest.mark.parametrize("bound", ["cancelled", "lease", "timeout"])
async def test_a_bound_that_is_reached_ends_the_work(bound: str) -> None:
    """The work has ended before the reason is raised, and the first reason remains."""
    bounds, work, held = TurnBounds(), Work(), lease()
    running = await begin(bounds, work, held)
    if bound == "cancelled":
        bounds.cancel()
        bounds.reach(TimeoutError())
    elif bound == "lease":
        await asyncio.to_thread(held.lose)
    else:
        bounds.reach_after(0, TimeoutError())
    reasons = {"cancelled": TurnCancelled, "lease": DeliveryError, "timeout": TimeoutError}
    with pytest.raises(reasons[bound]):
        await running
    assert work.has_ended


async def test_a_lease_that_was_lost_before_ends_the_work() -> None:
    """A turn does not run on under a lease that was lost while it began."""
    bounds, work, held = TurnBounds(), Work(), lease()
    held.lose()
    await asyncio.sleep(0)
    with pytest.raises(DeliveryError):
        await bounds.run(work.run(), held)


async def test_work_that_has_ended_counts_although_a_bound_is_reached_at_once() -> None:
    """A turn that was settled is not reported as cancelled."""
    bounds = TurnBounds()

    async def end_as_it_is_cancelled() -> None:
        bounds.cancel()

    await bounds.run(end_as_it_is_cancelled(), lease())


async def test_who_cancels_the_wait_cancels_the_work() -> None:
    """The work of a cancelled worker has ended when the worker ends."""
    bounds, work = TurnBounds(), Work()
    running = await begin(bounds, work, lease())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.has_ended


async def test_turns_are_drained_from_the_stop_on() -> None:
    """A turn that runs at the stop, and one that begins after it, are drained; no turn is before it."""
    drained, stop = DrainedTurns(0.0), asyncio.Event()
    before, after, work = TurnBounds(), TurnBounds(), Work()
    async with asyncio.TaskGroup() as group:
        group.create_task(drained.run(stop))
        with drained.track(before):
            running = await begin(before, work, lease())
            stop.set()
            with pytest.raises(Drained):
                await running
    with drained.track(after), pytest.raises(Drained):
        await after.run(Work().run(), lease())
