"""Run a simulated service: on a free port of loopback, or as a process that prints its address."""

from __future__ import annotations

import asyncio
import sys
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from aiohttp import web


class LoopbackService(Protocol):
    """A simulated service; `url` is its address while it runs."""

    url: str

    @abstractmethod
    def application(self) -> web.Application:
        """Return the routes."""

    @abstractmethod
    async def close(self) -> None:
        """End what the service has started."""


S = TypeVar("S", bound=LoopbackService)


@asynccontextmanager
async def run_on_loopback(service: S) -> AsyncIterator[S]:
    """Run a service on a free port of loopback, and close it on exit."""
    runner = web.AppRunner(service.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await service.close()
        await runner.cleanup()


async def serve_until_closed(service: LoopbackService) -> None:
    """Run a service, print its address on stdout, and end when stdin is closed."""
    async with run_on_loopback(service):
        print(service.url, flush=True)  # noqa: T201 - for the process that started this one
        await asyncio.to_thread(sys.stdin.read)
