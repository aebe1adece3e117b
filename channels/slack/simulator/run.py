"""Run a simulated Slack on a loopback port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from channels.slack.simulator.control import Control
from channels.slack.simulator.simulator import Simulator


@asynccontextmanager
async def simulate(*, port: int = 0) -> AsyncIterator[Simulator]:
    """Run a simulated Slack on a loopback port, a free one by default."""
    simulator = Simulator()
    application = simulator.server.application()
    Control(simulator).add_to(application)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    simulator.server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield simulator
    finally:
        await simulator.close()
        await runner.cleanup()
