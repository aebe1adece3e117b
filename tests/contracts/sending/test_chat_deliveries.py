"""Deliveries to chats, from row to platform: dead chats, missing rights, pauses, lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from channel_rigs import open_rig
from channels.errors import NotPermitted, RateLimited, Undeliverable
from channels.message import Address, Message
from channels.port import ChannelFeature, ChannelPlugin
from channels.registry import built_in
from channels.testing.connections import CHANNEL, UpdateRecorder, open_connection, receiving
from delivery.chat.rate_limit import SendPriority
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.database.tables import destinations as destination_rows
from delivery.deliveries import destinations, ordering, store
from delivery.deliveries.port import Delivery, Outcome, Sink
from delivery_worker import ACCOUNT, DeliveryWorkerHarness
from memory_channel import MemoryChannel
from sink_harnesses import HIGH_LIMITS, make_bot

ROOM = Address(channel="chn_1", room="42")
OTHER = Address(channel="chn_1", room="43")
FINDING_CHANNELS = [
    plugin
    for plugin in built_in().values()
    if {ChannelFeature.FIND, ChannelFeature.IDEMPOTENT_SEND} & plugin.features
]


@pytest.fixture
def channel() -> MemoryChannel:
    """Return a platform in memory."""
    return MemoryChannel()


def make_worker(
    database: Database, channel: MemoryChannel, *features: ChannelFeature
) -> DeliveryWorkerHarness:
    """Return a worker for one bot."""
    bot = make_bot(channel, frozenset(features or {ChannelFeature.EDIT}))
    return DeliveryWorkerHarness(database=database, bots={"chn_1": bot})


@pytest.fixture
async def worker(database: Database, channel: MemoryChannel) -> AsyncIterator[DeliveryWorkerHarness]:
    """Run a worker."""
    line = make_worker(database, channel)
    async with line.running():
        yield line


def calls(channel: MemoryChannel) -> list[str]:
    """Return what the platform was asked."""
    return [call for call, _ in channel.calls]


async def test_a_dead_chat_is_called_once_and_reported_once(
    worker: DeliveryWorkerHarness, channel: MemoryChannel
) -> None:
    """Its waiting deliveries are suppressed with the reason, without a call; one warning is logged."""
    channel.errors.append(Undeliverable("blocked"))
    with capture_logs() as logs:
        conversation = await worker.create_deliveries(ROOM, ["one", "two", "three"])
        found = await worker.wait_for_states(conversation, "suppressed")
        later = await worker.wait_for_states(await worker.create_deliveries(ROOM, ["four"]), "suppressed")
    assert {one.error for one in (*found, *later)} == {"blocked"}
    assert calls(channel) == ["send"]
    marked_dead = ("destination.marked_dead", "warning")
    assert [(entry["event"], entry["log_level"]) for entry in logs].count(marked_dead) == 1
    assert "error" not in {entry["log_level"] for entry in logs}, "no operator has to act"


async def test_a_dead_chat_that_speaks_again_is_alive(
    worker: DeliveryWorkerHarness, channel: MemoryChannel, database: Database
) -> None:
    """After a user writes there, or an operator retries a delivery, the chat is used again."""
    channel.errors.append(Undeliverable("kicked"))
    dead = await worker.create_deliveries(ROOM, ["one"])
    (suppressed,) = await worker.wait_for_states(dead, "suppressed")
    async with database.begin() as connection:
        await destinations.mark_alive(connection, ROOM.destination)
    await worker.wait_for_states(await worker.create_deliveries(ROOM, ["two"]), "delivered")
    async with database.begin() as connection:
        await destinations.mark_dead(connection, ROOM.destination, account=ACCOUNT, why="kicked")
        assert await store.requeue(connection, ACCOUNT, suppressed.id)
    await worker.wake_worker(ROOM)
    await worker.wait_for_states(dead, "delivered")
    assert channel.texts("42") == ["two", "one"]


async def test_a_chat_that_was_dead_for_long_is_tried_again(
    worker: DeliveryWorkerHarness, channel: MemoryChannel, database: Database
) -> None:
    """A new message is sent after what the chat missed, but not what is old; no person has to write."""
    channel.errors.append(Undeliverable("archived"))
    old, missed = [await worker.create_deliveries(ROOM, [text]) for text in ("old", "missed")]
    await worker.wait_for_states(old, "suppressed")
    await worker.wait_for_states(missed, "suppressed")
    days_ago = datetime.now(UTC) - timedelta(days=2)
    async with database.begin() as connection:
        await connection.execute(
            update(deliveries).where(deliveries.c.conversation == old).values(created_at=days_ago)
        )
        await connection.execute(
            update(destination_rows).values(dead_at=datetime.now(UTC) - timedelta(hours=7))
        )
    await worker.wait_for_states(await worker.create_deliveries(ROOM, ["new"]), "delivered")
    await worker.wait_for_states(missed, "delivered")
    await worker.wait_for_states(old, "suppressed")
    assert channel.texts("42") == ["missed", "new"]


async def test_a_dead_chat_is_tried_again_after_its_channel_was_changed(
    worker: DeliveryWorkerHarness, channel: MemoryChannel, database: Database
) -> None:
    """A wrong bot's token may have been the cause; a chat that died after the change stays dead."""
    before = datetime.now(UTC)
    channel.errors.append(Undeliverable("chat not found"))
    missed = await worker.create_deliveries(ROOM, ["missed"])
    await worker.wait_for_states(missed, "suppressed")
    async with database.begin() as connection:
        assert await ordering.retry_channel(connection, ACCOUNT, ROOM.channel, before) == set()
        at_other = ordering.retry_channel(connection, ACCOUNT, "chn_11", datetime.now(UTC))
        assert await at_other == set()
    async with database.begin() as connection:
        found = await ordering.retry_channel(connection, ACCOUNT, ROOM.channel, datetime.now(UTC))
    assert found == {ROOM.destination}
    await worker.wake_worker(ROOM)
    await worker.wait_for_states(missed, "delivered")


async def test_a_chat_that_speaks_before_its_deliveries_are_ended_gets_them(
    worker: DeliveryWorkerHarness, channel: MemoryChannel, database: Database
) -> None:
    """The worker has read that the chat is dead; then a user writes there, and the reply is created."""
    async with worker.leases.acquire(f"d:{ROOM.destination}") as lease:
        conversation = await worker.create_deliveries(ROOM, ["the reply"])
        async with database.read() as connection:
            found = await store.list_open(connection, ROOM.destination, limit=10)
        await worker._worker._suppress(ROOM.destination, found, "kicked", lease)
    await worker.wait_for_states(conversation, "delivered")
    assert channel.texts("42") == ["the reply"]


async def test_a_missing_right_makes_a_delivery_wait(
    worker: DeliveryWorkerHarness, channel: MemoryChannel
) -> None:
    """The delivery names the missing right, the chat is not dead, and an operator's retry sends again."""
    channel.errors.append(NotPermitted("Send Messages"))
    conversation = await worker.create_deliveries(ROOM, ["hello"])
    (waiting,) = await worker.wait_for_states(conversation, "retrying")
    assert "Send Messages" in (waiting.error or "")
    assert waiting.next_at is not None
    assert waiting.next_at > datetime.now(UTC) + timedelta(minutes=10)
    async with worker.database.begin() as connection:
        assert (await destinations.get_state(connection, ROOM.destination)).dead_reason is None
        await store.requeue(connection, ACCOUNT, waiting.id)
    await worker.wake_worker(ROOM)
    await worker.wait_for_states(conversation, "delivered")


async def test_a_429_holds_its_chat_and_no_other(
    worker: DeliveryWorkerHarness, channel: MemoryChannel
) -> None:
    """While one chat waits as long as the platform asks, another gets its messages at once."""
    channel.errors.append(RateLimited(60))
    held = await worker.create_deliveries(ROOM, ["one", "two"])
    async with asyncio.timeout(20):
        while await worker.states(held) != ["retrying", "pending"]:  # noqa: ASYNC110 - polls rows
            await asyncio.sleep(0.01)
    await worker.wait_for_states(await worker.create_deliveries(OTHER, ["hello"]), "delivered")
    assert await worker.states(held) == ["retrying", "pending"]
    assert len(channel.calls) == 2


async def test_a_429_for_the_bot_holds_every_replica(database: Database, channel: MemoryChannel) -> None:
    """Another process, which got no refusal itself, pauses all of the bot's chats too."""
    channel.errors.append(RateLimited(60, scope="account"))
    one, other = make_worker(database, channel), make_worker(database, channel)
    async with one.running(), other.running():
        await one.wait_for_states(await one.create_deliveries(ROOM, ["one"]), "retrying")
        waiting = await other.create_deliveries(OTHER, ["two"])
        rate_limiter = other.bots["chn_1"].rate_limiter
        async with asyncio.timeout(10):
            while rate_limiter.wait(SendPriority.FINAL, OTHER.destination) < 50:  # noqa: ASYNC110 - polls a budget
                await asyncio.sleep(0.01)
        assert await other.states(waiting) == ["pending"]
    assert calls(channel) == ["send"]


async def test_a_429_for_one_installation_holds_its_chats_alone(
    database: Database, channel: MemoryChannel
) -> None:
    """Every replica pauses the chats that share the installation's limits, and no others."""
    channel.errors.append(RateLimited(60, scope="account"))
    limits = replace(HIGH_LIMITS, account_of=lambda room: room.partition("/")[0])
    one, other = (
        DeliveryWorkerHarness(
            database=database, bots={"chn_1": make_bot(channel, frozenset({ChannelFeature.EDIT}), limits)}
        )
        for _ in range(2)
    )
    held, same, free = (Address(channel="chn_1", room=room) for room in ("octo/a", "octo/b", "acme/a"))
    async with one.running(), other.running():
        await one.wait_for_states(await one.create_deliveries(held, ["one"]), "retrying")
        waiting = await other.create_deliveries(same, ["two"])
        for replica in (one, other):
            await replica.wait_for_states(await replica.create_deliveries(free, ["three"]), "delivered")
        assert one.bots["chn_1"].rate_limiter.wait(SendPriority.FINAL, same.destination) > 50
        assert await other.states(waiting) == ["pending"]
    assert calls(channel) == ["send", "send", "send"]


async def test_a_lost_answer_is_looked_up_once_and_nothing_repeated(
    database: Database, channel: MemoryChannel
) -> None:
    """Through the row and back: an uncertain send is found by its key, and the rest follows in order."""
    channel.lost_answers = 1
    line = make_worker(database, channel, ChannelFeature.FIND)
    async with line.running():
        found = await line.wait_for_states(await line.create_deliveries(ROOM, ["one", "two"]), "delivered")
    assert [one.platform_id for one in found] == ["1", "2"]
    assert calls(channel) == ["send", "find", "send"]


async def test_an_uncertain_send_stays_uncertain_until_it_is_delivered(
    database: Database, channel: MemoryChannel
) -> None:
    """An attempt that ends before it asks the platform, here for a rate limit, forgets nothing."""
    channel.lost_answers = 1
    line = replace(make_worker(database, channel, ChannelFeature.FIND), patience_seconds=0)
    limiter = line.bots["chn_1"].rate_limiter
    paused = asyncio.Event()

    class Pausing(Sink):
        """The sink, with a rate limit from its second attempt on."""

        def __init__(self, sink: Sink) -> None:
            self.sink = sink

        async def send(self, delivery: Delivery) -> Outcome:
            if delivery.attempt == 2:
                limiter.pause(0.05, room=ROOM.destination)
                paused.set()
            return await self.sink.send(delivery)

    line = replace(line, wrap_sink=Pausing)
    async with line.running():
        (found,) = await line.wait_for_states(await line.create_deliveries(ROOM, ["one"]), "delivered")
    assert paused.is_set()
    assert found.attempts >= 3
    assert calls(channel) == ["send", "find"]
    assert channel.texts("42") == ["one"]


async def test_two_replicas_never_speak_in_one_chat_at_once(
    database: Database, channel: MemoryChannel
) -> None:
    """Woken for the same chat all the time, two workers deliver every part once and in order."""
    one = make_worker(database, channel)
    other = replace(one, bots={"chn_1": make_bot(channel, frozenset())})
    texts = [str(number) for number in range(15)]
    async with one.running(), other.running():
        owed = [await one.create_deliveries(room, texts) for room in (ROOM, OTHER)]
        for _ in range(5):
            for line in (one, other):
                await line.wake_worker(ROOM)
                await line.wake_worker(OTHER)
        for conversation in owed:
            await one.wait_for_states(conversation, "delivered")
    assert channel.texts("42") == channel.texts("43") == texts


@pytest.mark.parametrize("plugin", FINDING_CHANNELS, ids=lambda plugin: plugin.name)
@pytest.mark.parametrize("carried_out", [True, False])
async def test_platforms_that_recognise_a_repeat_get_one_message(
    plugin: ChannelPlugin, database: Database, *, carried_out: bool
) -> None:
    """A connection cut before or after the platform took a message leads to exactly one message."""
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(open_rig(plugin))
        connection = await stack.enter_async_context(open_connection(plugin, rig.settings()))
        recorder = UpdateRecorder()
        await stack.enter_async_context(receiving(connection, recorder))
        await rig.say("hello")
        (reported,) = await recorder.wait(1)
        assert isinstance(reported, Message)
        bot = make_bot(connection.sender, plugin.features, replace(plugin.limits, room_sends_per_second=100))
        line = DeliveryWorkerHarness(database=database, bots={CHANNEL: bot})
        await rig.cut_sending(carried_out=carried_out)
        async with line.running():
            await line.wait_for_states(
                await line.create_deliveries(reported.address, ["first", "second"]), "delivered", seconds=40
            )
        assert [received.text for received in rig.visible_messages()] == ["first", "second"]
