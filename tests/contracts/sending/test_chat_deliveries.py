"""Deliveries to chats, from row to platform: dead chats, missing rights, pauses, lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from channel_rigs import CHANNEL, RIGS, Ear, opened, receiving, rigged
from channels.errors import NotPermitted, RateLimited, Undeliverable
from channels.message import Address, Message
from channels.port import ChannelPlugin, Feature
from channels.registry import installed
from delivery.chat.rate_limit import Use
from delivery.database.engine import Database
from delivery.deliveries import destinations, store
from delivery_worker import ACCOUNT, Line
from memory_channel import MemoryChannel
from sink_harnesses import a_bot

ROOM = Address(channel="chn_1", room="42")
OTHER = Address(channel="chn_1", room="43")
TELLING = [
    plugin
    for plugin in installed().values()
    if plugin.name in RIGS and {Feature.FIND, Feature.IDEMPOTENT_SEND} & plugin.features
]


@pytest.fixture
def channel() -> MemoryChannel:
    """Return a platform in memory."""
    return MemoryChannel()


def a_line(database: Database, channel: MemoryChannel, *features: Feature) -> Line:
    """Return a worker for one bot."""
    bot = a_bot(channel, frozenset(features or {Feature.EDIT}))
    return Line(database=database, bots={"chn_1": bot})


@pytest.fixture
async def line(database: Database, channel: MemoryChannel) -> AsyncIterator[Line]:
    """Run a worker."""
    line = a_line(database, channel)
    async with line.running():
        yield line


def calls(channel: MemoryChannel) -> list[str]:
    """Return what the platform was asked."""
    return [call for call, _ in channel.calls]


async def test_a_dead_chat_is_called_once_and_told_once(line: Line, channel: MemoryChannel) -> None:
    """What waits for it is suppressed with the reason, without a call, and the log says it once."""
    channel.trouble.append(Undeliverable("blocked"))
    with capture_logs() as logs:
        conversation = await line.owe(ROOM, ["one", "two", "three"])
        found = await line.until(conversation, "suppressed")
        later = await line.until(await line.owe(ROOM, ["four"]), "suppressed")
    assert {one.error for one in (*found, *later)} == {"blocked"}
    assert calls(channel) == ["send"]
    assert [entry["event"] for entry in logs].count("delivery.chat_dead") == 1


async def test_a_dead_chat_that_speaks_again_is_alive(
    line: Line, channel: MemoryChannel, database: Database
) -> None:
    """Once a person is heard there, and once an operator asks for it, the chat is tried again."""
    channel.trouble.append(Undeliverable("kicked"))
    dead = await line.owe(ROOM, ["one"])
    (suppressed,) = await line.until(dead, "suppressed")
    async with database.begin() as connection:
        await destinations.revive(connection, ROOM.destination)
    await line.until(await line.owe(ROOM, ["two"]), "delivered")
    async with database.begin() as connection:
        await destinations.bury(connection, ROOM.destination, account=ACCOUNT, why="kicked")
        assert await store.rearm(connection, ACCOUNT, suppressed.id)
    await line.wake(ROOM)
    await line.until(dead, "delivered")
    assert channel.texts("42") == ["two", "one"]


async def test_a_missing_right_makes_a_delivery_wait(line: Line, channel: MemoryChannel) -> None:
    """The right's name stands in the delivery, the chat is not dead, and an operator's word tries again."""
    channel.trouble.append(NotPermitted("Send Messages"))
    conversation = await line.owe(ROOM, ["hello"])
    (waiting,) = await line.until(conversation, "retrying")
    assert "Send Messages" in (waiting.error or "")
    assert waiting.next_at is not None
    assert waiting.next_at > datetime.now(UTC) + timedelta(minutes=10)
    async with line.database.begin() as connection:
        assert (await destinations.weather(connection, ROOM.destination)).dead is None
        await store.rearm(connection, ACCOUNT, waiting.id)
    await line.wake(ROOM)
    await line.until(conversation, "delivered")


async def test_a_429_holds_its_chat_and_no_other(line: Line, channel: MemoryChannel) -> None:
    """While one chat waits for as long as the platform says, another is spoken to at once."""
    channel.trouble.append(RateLimited(60))
    held = await line.owe(ROOM, ["one", "two"])
    async with asyncio.timeout(20):
        while await line.states(held) != ["retrying", "pending"]:  # noqa: ASYNC110 - rows tell nobody
            await asyncio.sleep(0.01)
    await line.until(await line.owe(OTHER, ["hello"]), "delivered")
    assert await line.states(held) == ["retrying", "pending"]
    assert len(channel.calls) == 2


async def test_a_429_for_the_bot_holds_every_replica(database: Database, channel: MemoryChannel) -> None:
    """Another process, which was told nothing by the platform, leaves all of the bot's chats alone too."""
    channel.trouble.append(RateLimited(60, scope="account"))
    one, other = a_line(database, channel), a_line(database, channel)
    async with one.running(), other.running():
        await one.until(await one.owe(ROOM, ["one"]), "retrying")
        waiting = await other.owe(OTHER, ["two"])
        budget = other.bots["chn_1"].budget
        async with asyncio.timeout(10):
            while budget.wait(Use.FINAL, OTHER.destination) < 50:  # noqa: ASYNC110 - a budget tells nobody
                await asyncio.sleep(0.01)
        assert await other.states(waiting) == ["pending"]
    assert calls(channel) == ["send"]


async def test_a_lost_answer_is_looked_up_once_and_nothing_repeated(
    database: Database, channel: MemoryChannel
) -> None:
    """Through the row and back: an uncertain send is found by its key, and the rest follows in order."""
    channel.lost_answers = 1
    line = a_line(database, channel, Feature.FIND)
    async with line.running():
        found = await line.until(await line.owe(ROOM, ["one", "two"]), "delivered")
    assert [one.platform_id for one in found] == ["1", "2"]
    assert calls(channel) == ["send", "find", "send"]


async def test_two_replicas_never_speak_in_one_chat_at_once(
    database: Database, channel: MemoryChannel
) -> None:
    """Woken for the same chats all the time, two workers bring every part once and in order."""
    one = a_line(database, channel)
    other = replace(one, bots={"chn_1": a_bot(channel, frozenset())})
    texts = [str(number) for number in range(15)]
    async with one.running(), other.running():
        owed = [await one.owe(room, texts) for room in (ROOM, OTHER)]
        for _ in range(5):
            for line in (one, other):
                await line.wake(ROOM)
                await line.wake(OTHER)
        for conversation in owed:
            await one.until(conversation, "delivered")
    assert channel.texts("42") == channel.texts("43") == texts


@pytest.mark.parametrize("plugin", TELLING, ids=lambda plugin: plugin.name)
@pytest.mark.parametrize("carried_out", [True, False])
async def test_platforms_that_can_tell_are_told_once(
    plugin: ChannelPlugin, database: Database, *, carried_out: bool
) -> None:
    """A connection cut before or after the platform took a message leads to exactly one message."""
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(rigged(plugin))
        connection = await stack.enter_async_context(opened(plugin, rig.settings()))
        ear = Ear()
        await stack.enter_async_context(receiving(connection, ear))
        await rig.say("hello")
        (told,) = await ear.wait(1)
        assert isinstance(told, Message)
        bot = a_bot(connection.channel, plugin.features, replace(plugin.limits, room_sends_per_second=100))
        line = Line(database=database, bots={CHANNEL: bot})
        await rig.cut_sending(carried_out=carried_out)
        async with line.running():
            await line.until(await line.owe(told.address, ["first", "second"]), "delivered", seconds=40)
        assert [heard.text for heard in rig.heard()] == ["first", "second"]
