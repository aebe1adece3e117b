"""H2: a turn ends at once where it is performed, and soon when it was cancelled on another replica."""

from __future__ import annotations

import asyncio

import pytest

from delivery.database.engine import Database
from gateway.store.turns import turns
from gateway.turns.cancellation import Cancels
from ingress_harness import Stage, open_stage


@pytest.fixture
async def stage(database: Database) -> Stage:
    """A conversation to have turns in."""
    return await open_stage(database)


async def test_a_turn_performed_here_ends_without_waiting_for_a_look(stage: Stage) -> None:
    """With an hour between looks the word still arrives; another turn goes on."""
    cancels = Cancels(stage.database, look=3600.0)
    with cancels.of("trn_1") as first, cancels.of("trn_2") as second:
        cancels.cancel("trn_1")
        cancels.cancel("trn_of_another_replica")
        assert (first.is_set(), second.is_set()) == (True, False)
    with cancels.of("trn_1") as again:
        assert not again.is_set()


async def test_a_turn_cancelled_elsewhere_is_looked_for(stage: Stage) -> None:
    """What another replica wrote is found by the next look."""
    await stage.say("work")
    running = await stage.begin()
    cancels, stop = Cancels(stage.database, look=0.01), asyncio.Event()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(cancels.watch(stop))
        with cancels.of(running.id) as wanted:
            async with stage.database.begin() as connection:
                await turns.request_cancel(connection, running.id)
            await wanted.wait()
        stop.set()


async def test_the_first_reason_stands(stage: Stage) -> None:
    """A turn that was superseded and is then stopped ended because it was superseded."""
    await stage.say("work")
    (turn,) = await stage.line()
    async with stage.database.begin() as connection:
        await turns.request_cancel(connection, turn.id, why="superseded")
        await turns.request_cancel(connection, turn.id, why="stopped")
        assert await turns.why_cancelled(connection, turn.id) == "superseded"
