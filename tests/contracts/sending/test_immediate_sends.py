"""Deliveries that are claimed in the transaction that creates them: sent at once, once, and in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.deliveries import destinations, routes
from delivery.deliveries.attempt import AmbiguityPolicy
from delivery.deliveries.route import Route
from delivery.events import outbox
from delivery.events.event import Event, EventType, new_id
from delivery_worker import ACCOUNT, DeliveryWorkerHarness
from memory_channel import MemoryChannel
from sink_harnesses import make_bot

ROOM = Address(channel="chn_1", room="42")
CLAIM = ["delivery.claim.before_commit", "delivery.claim.after_commit"]


class RolledBack(Exception):
    """The transaction fails at a fault point."""


@dataclass(kw_only=True)
class FaultPointRecorder:
    """The fault points that were reached; the process survives `failing`, but not the transaction."""

    reached: list[str] = field(default_factory=list)
    failing: str = ""
    cancelling: str = ""

    def reach(self, point: str) -> None:
        """Record a fault point; at `cancelling` the task that reaches it is cancelled, once."""
        self.reached.append(point)
        if point == self.cancelling:
            self.cancelling = ""
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        if point == self.failing:
            self.failing = ""
            raise RolledBack


@dataclass(kw_only=True)
class ClaimedChat:
    """A conversation with a chat, and a worker that claims its deliveries at once."""

    channel: MemoryChannel
    worker: DeliveryWorkerHarness
    points: FaultPointRecorder
    conversation: str

    async def say(self, *texts: str, urgent: str = "") -> None:
        """Emit messages in one transaction, the last one as an urgent notice."""
        async with self.worker.transactions.begin("turn.settle") as tx:
            for text in [*texts, *([urgent] if urgent else [])]:
                data: dict[str, object] = {"role": "assistant", "text": text, "message": new_id("msg")}
                data |= {"urgent": True} if text == urgent else {}
                tx.emit(Event.now(EventType.MESSAGE_COMPLETED, self.conversation, data))

    async def wait_until_delivered(self) -> list[str]:
        """Wait for the ends of all deliveries; returns the texts in the room."""
        await self.worker.wait_for_states(self.conversation, "delivered")
        return self.channel.texts("42")

    @property
    def claims(self) -> list[str]:
        """The fault points of claims that were reached."""
        return [point for point in self.points.reached if point.startswith("delivery.claim")]


@pytest.fixture
async def chat(database: Database) -> ClaimedChat:
    """Return a chat whose worker does not run yet."""
    channel, points, conversation = MemoryChannel(), FaultPointRecorder(), new_id("cnv")
    async with database.begin() as connection:
        await outbox.create_stream(connection, conversation=conversation, account=ACCOUNT, agent="agt_1")
        route = Route.to_chat(account=ACCOUNT, conversation=conversation, address=ROOM)
        await routes.add_route(connection, route)
    worker = DeliveryWorkerHarness(
        database=database,
        bots={"chn_1": replace(make_bot(channel, frozenset()), policy=AmbiguityPolicy.AT_MOST_ONCE)},
        checkpoint=points.reach,
        claims_at_once=True,
    )
    return ClaimedChat(channel=channel, worker=worker, points=points, conversation=conversation)


async def test_the_transaction_that_creates_a_delivery_claims_it(chat: ClaimedChat) -> None:
    """There is no transaction of a claim beside that of the message, and one attempt is recorded."""
    async with chat.worker.running():
        await chat.worker.wait_until_idle(ROOM)
        chat.points.reached.clear()
        await chat.say("hello")
        assert await chat.wait_until_delivered() == ["hello"]
    assert chat.claims == CLAIM
    assert chat.points.reached.index(CLAIM[0]) < chat.points.reached.index("turn.settle.after_commit")
    (hello,) = await chat.worker.list_deliveries(chat.conversation)
    assert hello.attempts == 1


async def test_a_rolled_back_transaction_gives_its_place_back(chat: ClaimedChat) -> None:
    """What it would have sent is not sent, and what comes next is."""
    async with chat.worker.running():
        await chat.worker.wait_until_idle(ROOM)
        chat.points.failing = "delivery.claim.before_commit"
        with pytest.raises(RolledBack):
            await chat.say("lost")
        await chat.worker.wait_until_idle(ROOM)
        await chat.say("hello")
        assert await chat.wait_until_delivered() == ["hello"]


async def test_a_delivery_whose_transaction_was_cancelled_during_its_commit_is_sent_once(
    chat: ClaimedChat,
) -> None:
    """Its first attempt is recorded and was never made, so it cannot have arrived, whatever the policy."""
    async with chat.worker.running():
        await chat.worker.wait_until_idle(ROOM)
        chat.points.cancelling = "delivery.claim.before_commit"
        saying = asyncio.create_task(chat.say("hello"))
        await asyncio.wait({saying})
        assert saying.cancelled()
        async with chat.worker.database.begin():
            pass  # the commit in progress is over
        await chat.worker.wake_worker(ROOM)
        await chat.wait_until_delivered()
    found = await chat.worker.list_deliveries(chat.conversation)
    assert chat.channel.texts("42") == ["hello"] * len(found)
    assert len(found) <= 1


async def test_several_messages_of_a_transaction_keep_their_order(chat: ClaimedChat) -> None:
    """The first is claimed, and the others follow it."""
    async with chat.worker.running():
        await chat.worker.wait_until_idle(ROOM)
        await chat.say("one", "two", "three")
        assert await chat.wait_until_delivered() == ["one", "two", "three"]


async def test_an_urgent_notice_is_claimed_before_what_was_said_before_it(chat: ClaimedChat) -> None:
    """A person who pressed a button is answered before the others read what was decided."""
    async with chat.worker.running():
        await chat.worker.wait_until_idle(ROOM)
        await chat.say("decided", urgent="answered")
        assert await chat.wait_until_delivered() == ["answered", "decided"]


async def test_nothing_passes_an_unfinished_delivery(chat: ClaimedChat) -> None:
    """A message that was created while no worker ran is sent before one that could be claimed."""
    await chat.say("first")
    assert chat.claims == []
    async with chat.worker.running():
        await chat.say("second")
        assert await chat.wait_until_delivered() == ["first", "second"]


async def test_nothing_is_claimed_during_a_pause(chat: ClaimedChat, database: Database) -> None:
    """The delivery waits for the end of the pause, without an attempt."""
    async with chat.worker.running():
        await chat.worker.wait_until_idle(ROOM)
        until = utc_now() + timedelta(hours=1)
        async with database.begin() as connection:
            await destinations.pause(connection, ROOM.destination, account=ACCOUNT, until=until)
        chat.points.reached.clear()
        await chat.say("later")
        assert chat.claims == []
    (later,) = await chat.worker.list_deliveries(chat.conversation)
    assert (later.state, later.attempts) == ("pending", 0)
