"""A mention of the role that Discord creates for the bot is a mention of the bot."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channels.discord import plugin
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.discord.simulator.shapes import own_role_of
from channels.discord.simulator.world import DEFAULT_GUILD
from channels.message import Command, Message, PermissionsChanged
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState

CHAT = 4004
ROLE = own_role_of(str(DEFAULT_GUILD))


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


async def test_the_own_role_is_the_bot(simulator: Simulator) -> None:
    """Discord offers both under one name; another role is no mention."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings()) as connection, receiving(connection, recorder):
        for text in (f"<@&{ROLE}> hello", f"ask <@&{ROLE}>", "<@&77> hello", f"<@&{ROLE}> status"):
            await simulator.say(CHAT, text)
        *messages, command = await recorder.wait(4)
    received = [(one.text, one.mentions_bot) for one in messages if isinstance(one, Message)]
    assert received == [("hello", True), ("ask @dovecote", True), ("<@&77> hello", False)]
    assert isinstance(command, Command)
    assert command.name == "status"
    assert "roles" not in [name for name, _, _ in simulator.calls]


async def test_a_resumed_session_asks_for_the_role_once(simulator: Simulator) -> None:
    """Discord describes no server when a session is resumed; without an answer the role is unknown."""
    state, before, after = MemoryChannelState(), UpdateRecorder(), UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, before),
    ):
        await simulator.say(CHAT, "before")
        await before.wait(1)
    await simulator.say(CHAT, f"<@&{ROLE}> hello")
    async with (
        open_connection(plugin, simulator.settings(), state) as connection,
        receiving(connection, after),
    ):
        await simulator.say(CHAT, f"<@&{ROLE}> again")
        messages = await after.wait(2)
    assert simulator.sessions.resumed == 1
    assert [(one.text, one.mentions_bot) for one in messages if isinstance(one, Message)] == [
        ("hello", True),
        ("again", True),
    ]
    assert [name for name, _, _ in simulator.calls].count("roles") == 1


async def test_a_deleted_role_may_let_the_bot_write_again(simulator: Simulator) -> None:
    """What channels denied to the role is denied no more, and Discord reports nothing else."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, simulator.settings()) as connection, receiving(connection, recorder):
        await simulator.say(CHAT, "hello")
        await recorder.wait(1)
        await simulator.delete_role(CHAT, "77")
        _, deleted = await recorder.wait(2)
    assert isinstance(deleted, PermissionsChanged)
    assert deleted.extras == {"guild": str(DEFAULT_GUILD)}
