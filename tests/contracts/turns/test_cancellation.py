"""H2: a turn ends at once where it runs, and soon when it was cancelled on another replica."""

from __future__ import annotations

import asyncio

import pytest

from delivery.database.engine import Database
from gateway.store.turns import turns
from gateway.turns.cancellation import CancellationWatcher
from ingress_harness import IngressHarness, open_ingress_harness


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """A conversation to have turns in."""
    return await open_ingress_harness(database)


async def test_a_turn_performed_here_ends_without_waiting_for_a_look(harness: IngressHarness) -> None:
    """With an hour between polls a local cancel still works; another turn goes on."""
    cancels = CancellationWatcher(harness.database, interval=3600.0)
    ended: list[str] = []
    with (
        cancels.track("trn_1", lambda: ended.append("first")),
        cancels.track("trn_2", lambda: ended.append("second")),
    ):
        cancels.cancel("trn_1")
        cancels.cancel("trn_of_another_replica")
    cancels.cancel("trn_2")
    assert ended == ["first"]


async def test_a_turn_cancelled_elsewhere_is_looked_for(harness: IngressHarness) -> None:
    """A cancel from another replica is found by the next poll."""
    await harness.send_message("work")
    running = await harness.start_first_turn()
    cancels = CancellationWatcher(harness.database, interval=0.01)
    wanted, stop = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(cancels.run(stop))
        with cancels.track(running.id, wanted.set):
            async with harness.database.begin() as connection:
                await turns.request_cancel(connection, running.id)
            await wanted.wait()
        stop.set()


async def test_the_first_reason_is_kept(harness: IngressHarness) -> None:
    """A turn that was superseded and is then stopped ended because it was superseded."""
    await harness.send_message("work")
    (turn,) = await harness.list_open_turns()
    async with harness.database.begin() as connection:
        await turns.request_cancel(connection, turn.id, reason="superseded")
        await turns.request_cancel(connection, turn.id, reason="stopped")
        assert await turns.cancel_reason(connection, turn.id) == "superseded"
