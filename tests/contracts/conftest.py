"""Fixtures of the contracts: each installed channel on its own simulator, and databases of both kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channel_rigs import ChannelRig, UpdateRecorder, open_connection, open_rig, receiving
from channels.message import Message
from channels.port import ChannelPlugin, Connection
from channels.registry import installed
from databases import database, database_url, postgres  # noqa: F401 - fixtures


@pytest.fixture(params=list(installed().values()), ids=lambda plugin: plugin.name)
def plugin(request: pytest.FixtureRequest) -> ChannelPlugin:
    """Return each installed channel in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def rig(plugin: ChannelPlugin) -> AsyncIterator[ChannelRig]:
    """Return the channel's platform."""
    async with open_rig(plugin) as rig:
        yield rig


@pytest.fixture
async def connection(plugin: ChannelPlugin, rig: ChannelRig) -> AsyncIterator[Connection]:
    """Return a connection to the platform."""
    async with open_connection(plugin, rig.settings()) as connection:
        yield connection


@pytest.fixture
async def user_message(connection: Connection, rig: ChannelRig) -> Message:
    """Return a message a person sent in the room."""
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.say("hello")
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    return update
