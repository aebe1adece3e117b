"""Our reactions: what was seen and how it ended, in order, never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from channels.message import Address, Sign
from delivery.database.engine import Database
from gateway.ingress.status_reactions import MOST, Signs
from gateway.store.conversations import messages
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_queue
from ingress_harness import Stage, open_stage


@dataclass
class Wall:
    """Where signs appear; `broken` makes the next ones fail."""

    given: list[tuple[str, Sign]] = field(default_factory=list)
    broken: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def react(self, _address: Address, platform_id: str, sign: Sign) -> None:
        """Put a sign up."""
        if self.broken:
            self.broken -= 1
            raise RuntimeError("a fault of ours")
        self.given.append((platform_id, sign))
        self.changed.set()

    async def until(self, count: int) -> None:
        """Wait until so many signs are up."""
        async with asyncio.timeout(10):
            while len(self.given) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def stage(database: Database) -> Stage:
    """A conversation to have turns in."""
    return await open_stage(database)


@pytest.fixture
async def wall() -> Wall:
    """An empty wall."""
    return Wall()


@pytest.fixture
async def signs(stage: Stage, wall: Wall) -> AsyncIterator[Signs]:
    """Signs that are given while the test runs."""
    giving, stop = Signs(stage.database, wall.react, lambda: True), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(giving.run(stop))
        yield giving
        stop.set()


async def test_every_message_of_a_turn_shows_how_it_ended(stage: Stage, wall: Wall, signs: Signs) -> None:
    """Seen first, then the end under each message that the turn answered, one that joined it included."""
    first = await stage.say("one")
    signs.seen(stage.address(), first)
    (turn,) = await stage.line()
    await stage.begin()
    await stage.command("queue", "steer")
    second = await stage.say("two")
    async with stage.database.begin() as connection:
        other = (await stage.line())[1]
        assert await turn_queue.merge(connection, other, turn, place=0)
        await messages.give_to(connection, other.id, turn.id)
    signs.ended(turn, TurnState.COMPLETED)
    await wall.until(3)
    assert wall.given == [(first, Sign.SEEN), (first, Sign.DONE), (second, Sign.DONE)]


async def test_a_sign_that_fails_is_left_out(stage: Stage, wall: Wall, signs: Signs) -> None:
    """The next ones are given all the same; what has no platform id has no sign."""
    wall.broken = 1
    for platform_id in ("1", None, "2"):
        signs.seen(stage.address(), platform_id)
    await wall.until(1)
    assert wall.given == [("2", Sign.SEEN)]


async def test_signs_nobody_wants_or_that_are_too_many_are_not_kept(stage: Stage, wall: Wall) -> None:
    """Where no channel shows signs nothing waits; at a slow platform no more than a bounded number."""
    unwanted = Signs(stage.database, wall.react, lambda: False)
    unwanted.seen(stage.address(), "1")
    flooded = Signs(stage.database, wall.react, lambda: True)
    for number in range(MOST + 10):
        flooded.seen(stage.address(), str(number))
    assert unwanted.waiting == 0
    assert flooded.waiting == MOST
