"""The rigs of the built-in channels, by name: each has a module `<channel>_rig` beside this one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module

from channels.port import ChannelPlugin
from channels.testing.rig import WebhookRig


@asynccontextmanager
async def open_rig(plugin: ChannelPlugin) -> AsyncIterator[WebhookRig]:
    """Start a built-in channel's simulator with its rig."""
    assert plugin.simulate is not None, f"{plugin.name} has no simulator"
    async with AsyncExitStack() as stack:
        simulator, _ = await stack.enter_async_context(plugin.simulate())
        rig: WebhookRig = import_module(f"{plugin.name}_rig").rig(simulator)

        async def stop() -> None:
            await stack.aclose()
            await asyncio.sleep(0)  # the event loop closes the connections in its next step

        rig.stop = stop
        yield rig
