"""Connections before they are requests: how many an address may hold open without saying who it is.

aiohttp closes a connection that has not sent a whole request head within its keep-alive time; what it does
not do is count. A burst is let through for a moment, so that many honest clients of one address can arrive
at once and say who they are; beyond that the address waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from aiohttp import web

from gateway.web.limiter import normal
from gateway.web.surface import Bounds

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


class _Guarded(asyncio.Protocol):
    """Stands before aiohttp's protocol for one connection, and passes everything on."""

    def __init__(self, inner: asyncio.Protocol, crowd: Crowd) -> None:
        self._inner = inner
        self._crowd = crowd
        self._transport: asyncio.BaseTransport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.data_received = inner.data_received  # type: ignore[method-assign]  # no hop per packet
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        stays = self._crowd.arrives(transport)
        self._inner.connection_made(transport)
        if not stays:
            self._abort()
        elif self._crowd.is_too_many(transport):
            self._deadline = asyncio.get_running_loop().call_later(GRACE, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._transport is not None:
            self._crowd.leaves(self._transport)
        self._inner.connection_lost(exc)

    def _look(self) -> None:
        if self._transport is not None and self._crowd.is_too_many(self._transport):
            self._abort()

    def _abort(self) -> None:
        if isinstance(self._transport, asyncio.Transport):
            self._transport.abort()


class Runner(web.AppRunner):
    """aiohttp's runner, with every connection counted."""

    def __init__(self, application: web.Application, bounds: Bounds, **options: Any) -> None:
        super().__init__(application, **options)
        self._crowd = Crowd(bounds)
        application[CROWD] = self._crowd

    @property
    def server(self) -> Any:
        """Return the protocol factory that sites listen with."""
        inner = super().server
        if inner is None:
            return None
        return lambda: _Guarded(inner(), self._crowd)
