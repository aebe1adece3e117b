"""A forwarded message is received with its text and files, and a purge as the deletion of each message."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channels.discord import plugin
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.message import Message, MessageDeleted
from channels.testing.connections import UpdateRecorder, open_connection, receiving

CHAT, ADA = 4004, 7001


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


async def test_a_forwarded_message_is_received(simulator: Simulator) -> None:
    """Its text is marked and is no command; its file can be downloaded."""
    recorder = UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings()) as connection,
        receiving(connection, recorder),
    ):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        await simulator.forward(ADA, "the server is on fire", name="smoke.txt", content=b"grey")
        await simulator.forward(ADA, "/stop")
        first, second = await recorder.wait(2)
        assert isinstance(first, Message)
        assert isinstance(second, Message)
        (attachment,) = first.attachments
        content = b"".join([chunk async for chunk in connection.sender.download(attachment.ref)])
    assert first.text == "Forwarded message:\nthe server is on fire"
    assert (attachment.name, content) == ("smoke.txt", b"grey")
    assert second.text == "Forwarded message:\n/stop"


async def test_a_purge_deletes_each_of_its_messages(simulator: Simulator) -> None:
    """Discord sends one event for all of them."""
    recorder = UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings()) as connection,
        receiving(connection, recorder),
    ):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        numbers = [await simulator.say(CHAT, text) for text in ("one", "two")]
        await simulator.purge(CHAT, numbers)
        updates = await recorder.wait(4)
    assert [update.platform_id for update in updates if isinstance(update, MessageDeleted)] == numbers
