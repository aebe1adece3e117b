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

from gateway.web.http.auth_lockout import normalize_address
from gateway.web.http.context import WebLimits
from gateway.web.http.problems import HttpProblem

log = logging.getLogger("dovecote.web")

GRACE_SECONDS = 1.0
"""Seconds in which a connection may say who it is before it counts."""

BURST_FACTOR = 16
"""Times the limit at which connections are closed at once, grace or not."""


class ConnectionLimiter:
    """The open connections, by address while anonymous and by key once known."""

    def __init__(self, limits: WebLimits) -> None:
        self._limits = limits
        self._anonymous: Counter[str] = Counter()
        self._identified: dict[asyncio.BaseTransport, str] = {}
        self._by_key: Counter[str] = Counter()

    def address(self, transport: asyncio.BaseTransport) -> str:
        """Return the address a connection is counted by; none for a unix socket."""
        peer = transport.get_extra_info("peername")
        return normalize_address(peer[0]) if isinstance(peer, tuple) else ""

    def add(self, transport: asyncio.BaseTransport) -> bool:
        """Count a new connection; False when it must not stay."""
        address = self.address(transport)
        if not address:
            return True
        self._anonymous[address] += 1
        return self._anonymous[address] <= self._limits.anonymous_connections * BURST_FACTOR

    def over_limit(self, transport: asyncio.BaseTransport) -> bool:
        """Say whether a connection that is still anonymous stands beyond its address's limit."""
        if transport in self._identified:
            return False
        return self._anonymous[self.address(transport)] > self._limits.anonymous_connections

    def identify(self, transport: asyncio.BaseTransport | None, key: str) -> bool:
        """Count a connection by its key from now on; False when the key has too many."""
        if transport is None or not self.address(transport) or transport in self._identified:
            return True
        if self._by_key[key] >= self._limits.connections_per_key:
            return False
        self._identified[transport] = key
        self._by_key[key] += 1
        self._decrement(self._anonymous, self.address(transport))
        return True

    def discard(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection."""
        key = self._identified.pop(transport, None)
        if key is not None:
            self._decrement(self._by_key, key)
        elif address := self.address(transport):
            self._decrement(self._anonymous, address)

    @staticmethod
    def _decrement(counter: Counter[str], name: str) -> None:
        counter[name] -= 1
        if counter[name] <= 0:
            del counter[name]


CONNECTION_LIMITER = web.AppKey("crowd", ConnectionLimiter)


class _Connection(web.RequestHandler):
    """aiohttp's connection, counted, and polite about what is no HTTP at all."""

    __slots__ = ("_connection_limiter", "_grace_timer")

    def __init__(self, connection_limiter: ConnectionLimiter, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._connection_limiter = connection_limiter
        self._grace_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or end it."""
        stays = self._connection_limiter.add(transport)
        super().connection_made(transport)
        if not stays:
            self.force_close()
        elif self._connection_limiter.over_limit(transport):
            self._grace_timer = asyncio.get_running_loop().call_later(
                GRACE_SECONDS, self._close_if_over_limit
            )

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        if self.transport is not None:
            self._connection_limiter.discard(self.transport)
        super().connection_lost(exc)

    def _close_if_over_limit(self) -> None:
        if self.transport is not None and self._connection_limiter.over_limit(self.transport):
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
            log.error("connection.failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        words = "this is not a request that can be read" if status < 500 else "something went wrong inside"  # noqa: PLR2004
        return HttpProblem(status, words, close=True).to_response()


class _Server(web.Server):
    """Makes our connections in the place of aiohttp's."""

    connection_limiter: ConnectionLimiter

    def __call__(self) -> web.RequestHandler:
        return _Connection(self.connection_limiter, self, loop=self._loop, **self._kwargs)


class LimitedAppRunner(web.AppRunner):
    """aiohttp's runner, with every connection counted."""

    def __init__(self, application: web.Application, limits: WebLimits, **options: Any) -> None:
        super().__init__(application, **options)
        self._connection_limiter = ConnectionLimiter(limits)
        application[CONNECTION_LIMITER] = self._connection_limiter

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        made.__class__ = _Server  # aiohttp has no other way to bring one's own connection
        made.connection_limiter = self._connection_limiter  # type: ignore[attr-defined]
        return made
