"""A pytest plugin: readable assertions in the suite, and the fixtures that follow from `plugin` and `rig`.

pytest loads it by entry point wherever Dovecote is installed, so it imports nothing until a test needs it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from channels.message import Message
    from channels.port import ChannelPlugin, Connection
    from channels.testing.rig import ChannelRig

pytest.register_assert_rewrite(
    *(f"channels.testing.{name}" for name in ("features", "receiving", "rendering", "sending", "webhooks"))
)


@pytest.fixture
async def connection(plugin: ChannelPlugin, rig: ChannelRig) -> AsyncIterator[Connection]:
    """Return a connection to the rig's platform."""
    from channels.testing.connections import open_connection

    async with open_connection(plugin, rig.settings()) as connection:
        yield connection


@pytest.fixture
async def user_message(connection: Connection, rig: ChannelRig) -> Message:
    """Return a message that the person has sent in the room."""
    from channels.testing.connections import receive_message

    return await receive_message(connection, rig)
