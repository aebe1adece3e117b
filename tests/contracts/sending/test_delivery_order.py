"""The order of deliveries in a room: what one that keeps failing holds up, and what passes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from channels.errors import Ambiguous, ChannelError, Unreachable
from channels.message import Address, Reply, SentMessage
from delivery.chat.sink import ConnectedBot
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.deliveries import ordering, routes, store
from delivery.deliveries.part import FilePart, Part
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind
from delivery.deliveries.retry_schedule import RetrySchedule
from delivery.deliveries.route import Route
from delivery.deliveries.store import DueDelivery
from delivery.deliveries.transactions import Transaction
from delivery_worker import ACCOUNT, FAST_RETRIES, DeliveryWorkerHarness
from gateway.conversations.notices import report_parked
from gateway.conversations.submissions.conversation_lookup import create_conversation
from gateway.store.accounts import accounts
from gateway.store.accounts.accounts import Account
from memory_channel import MemoryChannel
from sink_harnesses import make_bot

ROOM = Address(channel="chn_1", room="42")
TOPIC = Address(channel="chn_1", room="42", thread="7")
FILE = Part(
    text="",
    file=FilePart(id="fil_1", name="result.txt", media_type="text/plain", size=6, path="", caption=""),
)
PARKING = RetrySchedule(
    delays=(0.01, 0.01, 0.01, 900), max_duration=86_400, jitter=0, park_after=60, park_unreached_after=3600
)
"""The fourth attempt's retry is later than a delivery may hold the others."""


@dataclass(slots=True)
class FailingChannel(MemoryChannel):
    """A platform that fails every message with one of these texts."""

    failing: dict[str, ChannelError] = field(default_factory=dict)

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Fail the message, or add it to the room."""
        if reply.text in self.failing:
            await self._record_call("send", reply)
            raise self.failing[reply.text]
        return await MemoryChannel.send(self, address, reply)


@dataclass(slots=True)
class AttachmentUploads:
    """Attachments of files: each attempt fails, or hangs until `hanging` is set."""

    attempts: int = 0
    hanging: asyncio.Event | None = None
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def attach(
        self, _bot: ConnectedBot, _address: Address, _delivery: Delivery, _file: FilePart
    ) -> Outcome:
        """Attempt once."""
        self.attempts += 1
        self.has_begun.set()
        if self.hanging is not None:
            await self.hanging.wait()
        return Outcome(kind=OutcomeKind.RETRY, detail="HTTP 500")


def make_line(
    database: Database, channel: MemoryChannel, schedule: RetrySchedule = PARKING
) -> DeliveryWorkerHarness:
    """Return a worker for one bot."""
    bot = make_bot(channel, frozenset())
    return DeliveryWorkerHarness(database=database, bots={"chn_1": bot}, schedule=schedule)


def failing(*texts: str, error: type[ChannelError] = Ambiguous) -> FailingChannel:
    """Return a platform that fails these texts."""
    return FailingChannel(failing={text: error("HTTP 500") for text in texts})


async def test_a_failing_delivery_holds_its_conversation_and_no_other(database: Database) -> None:
    """Other topics, a new conversation of the room and urgent notices pass; its own conversation waits."""
    channel = failing("poison")
    line = make_line(database, channel, replace(FAST_RETRIES, delays=(900,)))
    async with line.running():
        held = await line.create_deliveries(ROOM, ["poison"])
        await channel.until(lambda: len(channel.calls) == 1)
        await line.create_deliveries(ROOM, ["its successor"], held)
        topic = await line.create_deliveries(TOPIC, ["another topic"])
        await line.wait_for_states(topic, "delivered")
        new = await line.create_deliveries(ROOM, ["a new conversation"])
        await line.wait_for_states(new, "delivered")
        await line.create_parts(ROOM, [Part(text="the status")], held, urgent=True)
        await channel.until(lambda: "the status" in channel.texts("42"))
    assert channel.texts("42") == ["another topic", "a new conversation", "the status"]


async def test_a_delivery_that_keeps_failing_is_parked_and_reported_once(database: Database) -> None:
    """Its successors are sent, in order; it is retried by itself, and arrives when the platform allows."""
    channel, reports = failing("poison"), list[str]()
    line = make_line(database, channel)

    async def report(_tx: Transaction, due: DueDelivery) -> None:
        reports.append(due.delivery.id)

    line = replace(line, on_parked=report)
    async with line.running():
        conversation = await line.create_deliveries(ROOM, ["poison"])
        await line.create_deliveries(ROOM, ["one"], conversation)
        await line.create_deliveries(ROOM, ["two"], conversation)
        found = await line.wait_for_states(conversation, "parked", "delivered")
        (parked,) = [one for one in found if one.state == "parked"]
        assert channel.texts("42") == ["one", "two"]
        assert (parked.attempts, reports) == (4, [parked.id])
        assert parked.next_at is not None
        channel.failing.clear()
        async with database.begin() as connection:
            await store.requeue(connection, ACCOUNT, parked.id)
        await line.wake_worker(ROOM)
        await line.wait_for_states(conversation, "delivered")
    assert channel.texts("42") == ["one", "two", "poison"]


async def test_the_chat_gets_one_notice_of_a_parked_delivery(database: Database) -> None:
    """The notice names the delayed answer and is not repeated, however often the answer is parked."""
    channel = failing("poison")
    line = replace(make_line(database, channel), on_parked=report_parked)
    async with line.transactions.begin("reception") as tx:
        account = Account(id=ACCOUNT, name="one", created_at=utc_now())
        await accounts.add_account(tx.connection, account)
        conversation = await create_conversation(tx, account=ACCOUNT, agent="agt_1")
        route = Route.to_chat(account=ACCOUNT, conversation=conversation.id, address=ROOM)
        await routes.add_route(tx.connection, route)
    async with line.running():
        await line.create_deliveries(ROOM, ["poison"], conversation.id)
        await channel.until(lambda: len(channel.texts("42")) == 1)
        found = await line.wait_for_states(conversation.id, "parked", "delivered")
        (parked,) = [one for one in found if one.state == "parked"]
        async with database.begin() as connection:
            await store.requeue(connection, ACCOUNT, parked.id)
        await line.wake_worker(ROOM)
        await channel.until(lambda: [reply.text for _, reply in channel.calls].count("poison") == 8)
        await line.wait_for_states(conversation.id, "parked", "delivered")
    (notice,) = channel.texts("42")
    assert "`poison`" in notice


async def test_a_parked_delivery_can_be_dropped(database: Database) -> None:
    """An operator's drop ends it, and it is not sent any more."""
    channel = failing("poison")
    line = make_line(database, channel)
    async with line.running():
        conversation = await line.create_deliveries(ROOM, ["poison"])
        (parked,) = await line.wait_for_states(conversation, "parked")
        async with database.begin() as connection:
            assert await store.drop(connection, ACCOUNT, parked.id)
        await line.wait_for_states(conversation, "suppressed")


async def test_the_parts_of_a_reply_stay_together(database: Database) -> None:
    """Behind a parked first part the second waits, though the next reply passes both."""
    channel = failing("first half")
    line = make_line(database, channel)
    async with line.running():
        conversation = await line.create_deliveries(ROOM, ["first half", "second half"])
        await line.create_deliveries(ROOM, ["next"], conversation)
        await channel.until(lambda: channel.texts("42") == ["next"])
        await line.wait_for_states(conversation, "parked", "delivered")
        channel.failing.clear()
        parked = [one for one in await line.list_deliveries(conversation) if one.state == "parked"]
        async with database.begin() as connection:
            for one in parked:
                await store.requeue(connection, ACCOUNT, one.id)
        await line.wake_worker(ROOM)
        await line.wait_for_states(conversation, "delivered")
    assert channel.texts("42") == ["next", "first half", "second half"]


async def test_a_platform_that_cannot_be_reached_keeps_the_order(database: Database) -> None:
    """Nothing was sent and every message fails alike, so that nothing is parked for an hour."""
    channel = failing("poison", error=Unreachable)
    line = make_line(database, channel)
    async with line.running():
        conversation = await line.create_deliveries(ROOM, ["poison"])
        await line.create_deliveries(ROOM, ["one"], conversation)
        await channel.until(lambda: len(channel.calls) == 4)
        await line.wait_for_states(conversation, "retrying", "pending")
    assert not channel.texts("42")


async def test_a_failing_file_holds_no_text(database: Database) -> None:
    """The next answer of the conversation passes a file that is retried."""
    channel, uploads = MemoryChannel(), AttachmentUploads()
    line = make_line(database, channel, replace(FAST_RETRIES, delays=(900,)))
    line = replace(line, attach=uploads.attach)
    async with line.running():
        conversation = await line.create_parts(ROOM, [Part(text="the text"), FILE])
        await line.create_deliveries(ROOM, ["the next"], conversation)
        await channel.until(lambda: channel.texts("42") == ["the text", "the next"])
        assert uploads.attempts == 1
        await line.wait_for_states(conversation, "delivered", "retrying")


async def test_a_slow_file_holds_no_text(database: Database) -> None:
    """While an upload hangs, the texts behind it are sent."""
    channel, uploads = MemoryChannel(), AttachmentUploads(hanging=asyncio.Event())
    line = replace(make_line(database, channel), attach=uploads.attach, slow_seconds=0.05)
    async with line.running():
        conversation = await line.create_parts(ROOM, [FILE])
        await uploads.has_begun.wait()
        await line.create_deliveries(ROOM, ["a text"], conversation)
        await channel.until(lambda: channel.texts("42") == ["a text"])
        assert uploads.attempts == 1
        assert uploads.hanging is not None
        uploads.hanging.set()


async def test_a_recovery_retries_what_is_parked(database: Database) -> None:
    """After another delivery has recovered, those that have been parked for a minute are due."""
    channel = failing("poison")
    line = make_line(database, channel)
    async with line.running():
        conversation = await line.create_deliveries(ROOM, ["poison"])
        (parked,) = await line.wait_for_states(conversation, "parked")
    async with database.begin() as connection:
        assert parked.next_at is not None
        await ordering.hurry_parked(connection, ROOM.destination, now=parked.updated_at)
        tried = await ordering.list_due_heads(
            connection, ROOM.destination, bot="", now=parked.updated_at, limit=9
        )
        assert not tried.deliveries, "it was tried just now"
        later = parked.next_at - (parked.next_at - parked.updated_at) / 2
        await ordering.hurry_parked(connection, ROOM.destination, now=later)
        heads = await ordering.list_due_heads(connection, ROOM.destination, bot="", now=later, limit=9)
    assert [due.delivery.id for due in heads.deliveries] == [parked.id]


async def test_a_long_queue_hides_no_other_conversation(database: Database) -> None:
    """Behind a hundred messages of one conversation another one's is found at once."""
    channel = failing("poison")
    line = make_line(database, channel, replace(FAST_RETRIES, delays=(900,)))
    async with line.running():
        held = await line.create_deliveries(ROOM, ["poison"])
        await channel.until(lambda: len(channel.calls) == 1)
        await line.create_deliveries(ROOM, [str(number) for number in range(100)], held)
        await line.wait_for_states(await line.create_deliveries(TOPIC, ["heard"]), "delivered")
    assert channel.texts("42") == ["heard"]
