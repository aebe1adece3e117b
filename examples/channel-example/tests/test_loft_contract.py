"""Loft keeps the contract of channels."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channels.port import ChannelPlugin
from channels.registry import plugin as installed_plugin
from channels.testing.suite import ChannelContract
from loft_server import LoftRig, open_rig


class TestLoft(ChannelContract):
    """The contract, on a simulated Loft."""

    @pytest.fixture
    def plugin(self) -> ChannelPlugin:
        """Return the channel as the gateway finds it."""
        return installed_plugin("loft")

    @pytest.fixture
    async def rig(self) -> AsyncIterator[LoftRig]:
        """Return a simulated Loft."""
        async with open_rig() as rig:
            yield rig
