"""Our reactions: what was seen and how it ended, in order, never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from channels.message import Address, StatusReaction
from delivery.database.engine import Database
from gateway.ingress.interactions.status_reactions import MAX_QUEUED, StatusReactions
from gateway.store.conversations import messages
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_queue
from ingress_harness import IngressHarness, open_ingress_harness


@dataclass
class ReactionLog:
    """A channel that records reactions; `broken` makes the next ones fail."""

    reactions: list[tuple[str, StatusReaction]] = field(default_factory=list)
    failures: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def react(self, _address: Address, platform_id: str, sign: StatusReaction) -> None:
        """Add a reaction."""
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a fault of ours")
        self.reactions.append((platform_id, sign))
        self.changed.set()

    async def until(self, count: int) -> None:
        """Wait until so many reactions are there."""
        async with asyncio.timeout(10):
            while len(self.reactions) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """A conversation to have turns in."""
    return await open_ingress_harness(database)


@pytest.fixture
async def reaction_log() -> ReactionLog:
    """An empty wall."""
    return ReactionLog()


@pytest.fixture
async def status_reactions(
    harness: IngressHarness, reaction_log: ReactionLog
) -> AsyncIterator[StatusReactions]:
    """Signs that are given while the test runs."""
    giving, stop = StatusReactions(harness.database, reaction_log.react, lambda: True), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(giving.run(stop))
        yield giving
        stop.set()


async def test_every_message_of_a_turn_shows_how_it_ended(
    harness: IngressHarness, reaction_log: ReactionLog, status_reactions: StatusReactions
) -> None:
    """Seen first, then the end under each message that the turn answered, one that joined it included."""
    first = await harness.send_message("one")
    status_reactions.on_received(harness.account, harness.address(), first)
    (turn,) = await harness.list_open_turns()
    await harness.start_first_turn()
    await harness.send_command("queue", "steer")
    second = await harness.send_message("two")
    async with harness.database.begin() as connection:
        other = (await harness.list_open_turns())[1]
        assert await turn_queue.merge(connection, other, turn, place=0, text=other.input)
        await messages.reassign(connection, other.id, turn.id)
    status_reactions.on_turn_ended(turn, TurnState.COMPLETED)
    await reaction_log.until(3)
    assert reaction_log.reactions == [
        (first, StatusReaction.SEEN),
        (first, StatusReaction.DONE),
        (second, StatusReaction.DONE),
    ]


async def test_a_sign_that_fails_is_left_out(
    harness: IngressHarness, reaction_log: ReactionLog, status_reactions: StatusReactions
) -> None:
    """Later reactions are still added; a message without a platform id gets none."""
    reaction_log.failures = 1
    for platform_id in ("1", None, "2"):
        status_reactions.on_received("acc", harness.address(), platform_id)
    await reaction_log.until(1)
    assert reaction_log.reactions == [("2", StatusReaction.SEEN)]


async def test_a_slow_platform_of_one_account_delays_no_other(harness: IngressHarness) -> None:
    """While the reactions of one account hang, in order, those of another one are added."""
    hanging, seen, added = asyncio.Event(), list[str](), asyncio.Event()

    async def react(_address: Address, platform_id: str, _sign: StatusReaction) -> None:
        seen.append(platform_id)
        if platform_id.startswith("slow"):
            hanging.set()
            await asyncio.Event().wait()
        added.set()

    reactions, stop = StatusReactions(harness.database, react, lambda: True), asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(reactions.run(stop))
        for number in range(20):
            reactions.on_received("busy", harness.address(), f"slow{number}")
        await hanging.wait()
        reactions.on_received("quiet", harness.address(), "quick")
        await added.wait()
        stop.set()
    assert seen == ["slow0", "quick"]


async def test_unwanted_or_surplus_reactions_are_not_stored(
    harness: IngressHarness, reaction_log: ReactionLog
) -> None:
    """Without reactions nothing waits; at a slow platform a bounded number waits."""
    unwanted = StatusReactions(harness.database, reaction_log.react, lambda: False)
    unwanted.on_received("acc", harness.address(), "1")
    flooded = StatusReactions(harness.database, reaction_log.react, lambda: True)
    for number in range(MAX_QUEUED + 10):
        flooded.on_received("acc", harness.address(), str(number))
    flooded.on_received("other", harness.address(), "1")
    assert unwanted.queued("acc") == 0
    assert (flooded.queued("acc"), flooded.queued("other")) == (MAX_QUEUED, 1)
