"""A receiver of webhooks that accepts most events, and fails, is slow or is gone at random."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

ANSWERS = {200: 80, 500: 12, 503: 6, 410: 2}
"""The statuses, and how often of a hundred each is answered."""

SLOW_SHARE, SLOW_SECONDS = 0.05, 2.0


@asynccontextmanager
async def run_receiver(seed: int) -> AsyncIterator[str]:
    """Run the receiver on a loopback port; yields its address."""
    chosen = random.Random(seed)

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if chosen.random() < SLOW_SHARE:
            await asyncio.sleep(SLOW_SECONDS)
        (status,) = chosen.choices(list(ANSWERS), list(ANSWERS.values()))
        return web.Response(status=status)

    application = web.Application()
    application.router.add_post("/{name}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
