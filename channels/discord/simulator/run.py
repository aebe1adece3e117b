"""Run a simulated Discord on a loopback port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from channels.discord.simulator.control import Control
from channels.discord.simulator.simulator import Simulator


@asynccontextmanager
async def simulate(*, port: int = 0, **options: Any) -> AsyncIterator[Simulator]:
    """Run a simulated Discord on a loopback port, a free one by default."""
    simulator = Simulator(**options)
    application = simulator.server.application()
    Control(simulator).add_to(application)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    simulator.port = int(runner.addresses[0][1])
    simulator.rest.url = simulator.url
    simulator.sessions.url = f"ws://127.0.0.1:{simulator.port}/gateway/"
    try:
        yield simulator
    finally:
        await simulator.sessions.disconnect_all()
        await runner.cleanup()
