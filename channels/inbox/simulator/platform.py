"""A simulated platform on a loopback port: a web server whose answers can fail as a platform's do.

A simulator subclasses SimulatedPlatform, adds its routes, and names the operation of each request ("send",
"receive" or another word), so that a test can make the next ones of an operation fail.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import ClientError, ClientSession, ClientTimeout, web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMessage:
    """A message of the bot as the platform holds it: `text` as people read it, `raw` as it was sent."""

    id: str
    room: str
    thread: str | None
    text: str
    raw: str = ""


@dataclass(slots=True, kw_only=True)
class SimulatedFault:
    """What happens to the next `times` requests of an operation: an answer, a cut, or a late answer."""

    operation: str
    times: int = 1
    status: int = 0
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    carried_out: bool = False
    seconds: float = 0.0


class SimulatedPlatform(ABC):
    """The server, its faults, and waiting for what the bot does."""

    def __init__(self) -> None:
        self.url = ""
        self.faults: list[SimulatedFault] = []
        self.counts: Counter[str] = Counter()
        self.hook_url = ""
        self.hook_statuses: list[int] = []
        self._changed = asyncio.Condition()

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """Return the platform's API."""

    @abstractmethod
    def operation_of(self, request: web.Request) -> str:
        """Name a request's operation."""

    @abstractmethod
    def messages(self, room: Any = None) -> list[SimulatedMessage]:
        """Return the bot's messages, in order; `doctor --simulate` has one room, whatever its name."""

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[Self]:
        """Serve the API on a loopback port."""
        application = web.Application(middlewares=[self._apply_faults], client_max_size=64_000_000)
        application.add_routes(self.routes())
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def fail(
        self,
        operation: str,
        status: int,
        body: Any = None,
        *,
        times: int = 1,
        headers: Mapping[str, str] = {},
    ) -> None:
        """Answer the next requests of an operation with an error."""
        self.faults.append(
            SimulatedFault(operation=operation, status=status, body=body, times=times, headers=headers)
        )

    def cut(self, operation: str, *, carried_out: bool = False, times: int = 1) -> None:
        """Break the connection of the next requests, before or after they are carried out."""
        self.faults.append(SimulatedFault(operation=operation, carried_out=carried_out, times=times))

    def answer_late(self, operation: str, seconds: float) -> None:
        """Carry out the next request at once, and answer after some seconds."""
        self.faults.append(SimulatedFault(operation=operation, carried_out=True, seconds=seconds))

    async def notify(self) -> None:
        """Wake those who wait for a change."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Wait until a condition about the platform's state is true; raises TimeoutError."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(condition)

    async def post(self, body: bytes, headers: Mapping[str, str], *, timeout: float = 10.0) -> int:
        """Post an event to the bot's URL; return the status, 502 if there was no answer."""
        if not self.hook_url:
            return 502
        try:
            async with (
                ClientSession(timeout=ClientTimeout(total=timeout)) as session,
                session.post(self.hook_url, data=body, headers=dict(headers)) as response,
            ):
                status = response.status
        except (ClientError, TimeoutError, OSError):
            status = 502
        self.hook_statuses.append(status)
        return status

    @web.middleware
    async def _apply_faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        operation = self.operation_of(request)
        self.counts[operation] += 1
        fault = next((one for one in self.faults if one.operation == operation and one.times > 0), None)
        if fault is None:
            response = await handler(request)
            await self.notify()
            return response
        fault.times -= 1
        if fault.status:
            await self.notify()
            return web.json_response(fault.body, status=fault.status, headers=fault.headers)
        response = await handler(request) if fault.carried_out else web.Response()
        await self.notify()
        if fault.seconds:
            await asyncio.sleep(fault.seconds)
        elif request.transport is not None:
            request.transport.abort()
        return response
