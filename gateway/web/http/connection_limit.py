"""Connections before they are requests: how many an address may hold open without saying who it is.

aiohttp closes a connection that has not sent a whole request head within its keep-alive time; what it does
not do is count. A burst is let through for a moment, so that many honest clients of one address can arrive
at once and say who they are; beyond that the address waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from aiohttp import web

from gateway.web.http.auth_lockout import normal
from gateway.web.http.context import Bounds
from gateway.web.http.problems import Problem

log = logging.getLogger("dovecote.web")

GRACE = 1.0
"""Seconds in which a connection may say who it is before it counts."""

BURST = 16
"""Times the limit at which connections are closed at once, grace or not."""


class Crowd:
    """The open connections, by address while anonymous and by key once known."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._anonymous: Counter[str] = Counter()
        self._known: dict[asyncio.BaseTransport, str] = {}
        self._by_key: Counter[str] = Counter()

    def address(self, transport: asyncio.BaseTransport) -> str:
        """Return the address a connection is counted by; none for a unix socket."""
        peer = transport.get_extra_info("peername")
        return normal(peer[0]) if isinstance(peer, tuple) else ""

    def arrives(self, transport: asyncio.BaseTransport) -> bool:
        """Count a new connection; False when it must not stay."""
        address = self.address(transport)
        if not address:
            return True
        self._anonymous[address] += 1
        return self._anonymous[address] <= self._bounds.anonymous_connections * BURST

    def is_too_many(self, transport: asyncio.BaseTransport) -> bool:
        """Say whether a connection that is still anonymous stands beyond its address's limit."""
        if transport in self._known:
            return False
        return self._anonymous[self.address(transport)] > self._bounds.anonymous_connections

    def identifies(self, transport: asyncio.BaseTransport | None, key: str) -> bool:
        """Count a connection by its key from now on; False when the key has too many."""
        if transport is None or not self.address(transport) or transport in self._known:
            return True
        if self._by_key[key] >= self._bounds.connections_per_key:
            return False
        self._known[transport] = key
        self._by_key[key] += 1
        self._less(self._anonymous, self.address(transport))
        return True

    def leaves(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection."""
        key = self._known.pop(transport, None)
        if key is not None:
            self._less(self._by_key, key)
        elif address := self.address(transport):
            self._less(self._anonymous, address)

    @staticmethod
    def _less(counter: Counter[str], name: str) -> None:
        counter[name] -= 1
        if counter[name] <= 0:
            del counter[name]


CROWD = web.AppKey("crowd", Crowd)


class _Connection(web.RequestHandler):
    """aiohttp's connection, counted, and polite about what is no HTTP at all."""

    __slots__ = ("_anonymous", "_crowd")

    def __init__(self, crowd: Crowd, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._crowd = crowd
        self._anonymous: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or end it."""
        stays = self._crowd.arrives(transport)
        super().connection_made(transport)
        if not stays:
            self.force_close()
        elif self._crowd.is_too_many(transport):
            self._anonymous = asyncio.get_running_loop().call_later(GRACE, self._look_again)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        if self._anonymous is not None:
            self._anonymous.cancel()
        if self.transport is not None:
            self._crowd.leaves(self.transport)
        super().connection_lost(exc)

    def _look_again(self) -> None:
        if self.transport is not None and self._crowd.is_too_many(self.transport):
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it repeats what was sent, keys included
    ) -> web.StreamResponse:
        """Answer what could not be read as HTTP, without repeating it, here or in the log."""
        if status >= 500:  # noqa: PLR2004 - ours, not the client's
            log.error("a connection failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        words = "this is not a request that can be read" if status < 500 else "something went wrong inside"  # noqa: PLR2004
        return Problem(status, words, close=True).response()


class _Server(web.Server):
    """Makes our connections in the place of aiohttp's."""

    crowd: Crowd

    def __call__(self) -> web.RequestHandler:
        return _Connection(self.crowd, self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """aiohttp's runner, with every connection counted."""

    def __init__(self, application: web.Application, bounds: Bounds, **options: Any) -> None:
        super().__init__(application, **options)
        self._crowd = Crowd(bounds)
        application[CROWD] = self._crowd

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        made.__class__ = _Server  # aiohttp has no other way to bring one's own connection
        made.crowd = self._crowd  # type: ignore[attr-defined]
        return made
