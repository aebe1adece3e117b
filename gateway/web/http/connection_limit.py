"""Limits on open connections: by address while a connection is anonymous, by key once it is authenticated.

aiohttp closes a connection that has not sent a whole request head within its keep-alive time, but does not
count connections. That time is longer for trusted proxies, which send requests of new clients over
connections that have been idle: one that closes at that moment is a 502 for a client.

A burst is allowed for a moment, so that many clients behind one address can connect at once and
authenticate; after that the address has to wait.

Every count is the size of a set of open connections. A connection leaves its set when asyncio reports its
end, so a count cannot outlive the connections it counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web

from gateway.web.http.auth_lockout import Network, is_within, normalize_address
from gateway.web.http.connection import HttpConnection
from gateway.web.http.context import WebLimits
from gateway.web.http.problems import HttpProblem

GRACE_SECONDS = 1.0
"""Seconds in which a connection may authenticate before it counts."""

BURST_FACTOR = 16
"""Multiple of the limit at which connections are closed immediately, without the grace period."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """The client that a connection is counted for; `proxy` connections carry requests of several clients."""

    kind: Literal["address", "key", "proxy"]
    name: str


class ConnectionLimiter:
    """The open connections, by address while anonymous and by key once authenticated.

    A connection from one of `trusted_proxies` counts for the client whose request it carries, and for no
    client between two requests.
    """

    def __init__(self, limits: WebLimits, trusted_proxies: Sequence[Network] = ()) -> None:
        self._limits = limits
        self._trusted_proxies = trusted_proxies
        self._owners: dict[object, _Owner] = {}
        self._connections: dict[_Owner, set[object]] = {}

    @property
    def open_connections(self) -> int:
        """Return the number of open TCP connections."""
        return len(self._owners)

    def add(self, connection: object, peer: str) -> bool:
        """Count a new connection of a peer; False when it must be closed immediately."""
        address = normalize_address(peer)
        if is_within(peer, self._trusted_proxies):
            self._assign(connection, _Owner("proxy", address))
            return True
        self._assign(connection, _Owner("address", address))
        return not self._is_beyond_burst(connection)

    def keep_alive_of(self, peer: str) -> float:
        """Return the seconds after which an idle connection of a peer is closed."""
        is_proxy = is_within(peer, self._trusted_proxies)
        return self._limits.proxy_keep_alive if is_proxy else self._limits.header_deadline

    def over_limit(self, connection: object) -> bool:
        """Return whether an anonymous connection is one too many for its address."""
        return self._anonymous_count(connection) > self._limits.anonymous_connections

    def begin_request(self, connection: object, client: str) -> bool:
        """Count a proxy's connection for the client of its next request; False when that is too many."""
        owner = self._owners.get(connection)
        if owner is None or owner.kind != "proxy":
            return True
        self._assign(connection, _Owner("address", client))
        return not self._is_beyond_burst(connection)

    def end_request(self, connection: object, peer: str) -> None:
        """Count a proxy's connection for no client until its next request."""
        if connection in self._owners and is_within(peer, self._trusted_proxies):
            self._assign(connection, _Owner("proxy", normalize_address(peer)))

    def identify(self, connection: object, key: str) -> bool:
        """Count a connection by its key from now on; False when the key has too many."""
        owner = self._owners.get(connection)
        if owner is None or owner.kind == "key":
            return True
        if len(self._connections.get(_Owner("key", key), ())) >= self._limits.connections_per_key:
            return False
        self._assign(connection, _Owner("key", key))
        return True

    def discard(self, connection: object) -> None:
        """Stop counting a connection; does nothing for one that is not counted."""
        owner = self._owners.pop(connection, None)
        if owner is None:
            return
        same_owner = self._connections[owner]
        same_owner.discard(connection)
        if not same_owner:
            del self._connections[owner]

    def _assign(self, connection: object, owner: _Owner) -> None:
        self.discard(connection)
        self._owners[connection] = owner
        self._connections.setdefault(owner, set()).add(connection)

    def _anonymous_count(self, connection: object) -> int:
        owner = self._owners.get(connection)
        return len(self._connections[owner]) if owner is not None and owner.kind == "address" else 0

    def _is_beyond_burst(self, connection: object) -> bool:
        return self._anonymous_count(connection) > self._limits.anonymous_connections * BURST_FACTOR


CONNECTION_LIMITER = web.AppKey("connection_limiter", ConnectionLimiter)


class _Connection(HttpConnection):
    """A connection that is counted."""

    __slots__ = ("_connection_limiter", "_grace_timer")

    def __init__(self, connection_limiter: ConnectionLimiter, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._connection_limiter = connection_limiter
        self._grace_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or close it; connections of a Unix socket are not counted."""
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._keepalive_timeout = self._connection_limiter.keep_alive_of(peer[0])  # aiohttp's own
        super().connection_made(transport)
        if isinstance(peer, tuple):
            self._enforce_limit(is_allowed=self._connection_limiter.add(self, peer[0]))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop counting the connection; either side may have closed it."""
        self._connection_limiter.discard(self)
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        super().connection_lost(exc)

    def begin_request(self, client: str) -> bool:
        """Count the connection for the client of a request; False when the client has too many."""
        is_allowed = self._connection_limiter.begin_request(self, client)
        if is_allowed:
            self._enforce_limit(is_allowed=True)
        return is_allowed

    def _enforce_limit(self, *, is_allowed: bool) -> None:
        if not is_allowed:
            self.force_close()
        elif self._grace_timer is None and self._connection_limiter.over_limit(self):
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(GRACE_SECONDS, self._close_if_over_limit)

    def _close_if_over_limit(self) -> None:
        self._grace_timer = None
        if self._connection_limiter.over_limit(self):
            self.force_close()


def begin_request(request: web.Request, client: str) -> None:
    """Count the request's connection for `client`; raises HttpProblem 429 for one too many.

    Only connections from a trusted proxy change their owner: one of them carries requests of many clients.
    """
    connection = request.protocol
    if isinstance(connection, _Connection) and not connection.begin_request(client):
        raise too_many_connections("from this address")


def end_request(request: web.Request) -> None:
    """Count a proxy's connection for no client until its next request."""
    limiter = request.config_dict.get(CONNECTION_LIMITER)
    if limiter is not None:
        limiter.end_request(request.protocol, request.remote or "")


def too_many_connections(of: str) -> HttpProblem:
    """Return the 429 that closes a connection beyond a limit."""
    return HttpProblem(429, f"too many connections {of}", headers={"Retry-After": "5"}, close=True)


class _Server(web.Server):
    """aiohttp's server, which makes our connections."""

    connection_limiter: ConnectionLimiter

    def __call__(self) -> web.RequestHandler:
        return _Connection(self.connection_limiter, self, loop=self._loop, **self._kwargs)


class LimitedAppRunner(web.AppRunner):
    """aiohttp's runner with limits on connections."""

    def __init__(
        self,
        application: web.Application,
        limits: WebLimits,
        *,
        trusted_proxies: Sequence[Network] = (),
        **options: Any,
    ) -> None:
        super().__init__(application, **options)
        self._connection_limiter = ConnectionLimiter(limits, trusted_proxies)
        application[CONNECTION_LIMITER] = self._connection_limiter

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server  # aiohttp has no other way to replace the connection class
        server.connection_limiter = self._connection_limiter  # type: ignore[attr-defined]
        return server
