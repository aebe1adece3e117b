"""Fixtures of the contracts: each installed channel on its own simulator, and databases of both kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channel_rigs import Ear, Rig, opened, receiving, rigged
from channels.message import Message
from channels.port import ChannelPlugin, Connection
from channels.registry import installed
from databases import database, database_url, postgres  # noqa: F401 - fixtures


@pytest.fixture(params=list(installed().values()), ids=lambda plugin: plugin.name)
def plugin(request: pytest.FixtureRequest) -> ChannelPlugin:
    """Return each installed channel in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def rig(plugin: ChannelPlugin) -> AsyncIterator[Rig]:
    """Return the channel's platform."""
    async with rigged(plugin) as rig:
        yield rig


@pytest.fixture
async def connection(plugin: ChannelPlugin, rig: Rig) -> AsyncIterator[Connection]:
    """Return a connection to the platform."""
    async with opened(plugin, rig.settings()) as connection:
        yield connection


@pytest.fixture
async def told(connection: Connection, rig: Rig) -> Message:
    """Return a message a person sent in the room."""
    ear = Ear()
    async with receiving(connection, ear):
        await rig.say("hello")
        (update,) = await ear.wait(1)
    assert isinstance(update, Message)
    return update
