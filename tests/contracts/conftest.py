"""Fixtures of the contracts: each built-in channel on its own simulator, and databases of both kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channel_rigs import open_rig
from channels.port import ChannelPlugin
from channels.registry import built_in
from channels.testing.rig import WebhookRig
from databases import database, database_url, postgres  # noqa: F401 - fixtures


@pytest.fixture(params=list(built_in().values()), ids=lambda plugin: plugin.name)
def plugin(request: pytest.FixtureRequest) -> ChannelPlugin:
    """Return each built-in channel in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def rig(plugin: ChannelPlugin) -> AsyncIterator[WebhookRig]:
    """Return the rig of the channel's simulator."""
    async with open_rig(plugin) as rig:
        yield rig
