"""Open aiohttp sessions that check the address of every connection.

The check is in the socket factory, after name resolution. So the checked address is the connected address,
also with literals, rebinding resolvers and cached names. Redirects are refused, proxies and .netrc of the
environment are not used, and cookies are not stored.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from egress.guard import EgressGuard
from egress.policy import EgressRefused

KEEPALIVE_SECONDS = 15.0


LOOKUP_THREADS = 16
"""Names that are resolved at once."""

SocketFactory = Callable[[int, int, int], socket.socket]
"""Returns a new socket of a family, kind and protocol."""

LookUp = Callable[[str, int, int, int], list[Any]]
"""The function `socket.getaddrinfo`, with its host, port, family and type."""


class Resolver(AbstractResolver):
    """Resolves names in threads of its own, so that slow name servers do not delay other work.

    It shuts down its `executor` when it is closed.
    """

    def __init__(self, *, executor: Executor, look_up: LookUp = socket.getaddrinfo) -> None:
        self._threads = executor
        self._look_up = look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, self._look_up, host, port, family, socket.SOCK_STREAM
        )
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, proto, _, address in found
        ]

    async def close(self) -> None:
        """Stop the threads without waiting for pending lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def open_session(
    guard: EgressGuard,
    *,
    resolver: AbstractResolver | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: aiohttp.ClientTimeout | None = None,
    limit: int = 100,
    force_close: bool = False,
    keepalive_timeout: float = KEEPALIVE_SECONDS,
    auto_decompress: bool = True,
    make_socket: SocketFactory = socket.socket,
) -> aiohttp.ClientSession:
    """Return a session whose connections the guard checks; the caller closes it.

    A refused connection raises aiohttp.ClientConnectorError; `egress.policy.refusal` finds the reason. A call
    that would follow a redirect raises EgressRefused.
    """

    def checked_socket(info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = info
        guard.check(str(address[0]), int(address[1]))
        return make_socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        socket_factory=checked_socket,
        resolver=resolver,
        limit=limit,
        force_close=force_close,
        # aiohttp accepts no time-out for connections that it closes after each response.
        keepalive_timeout=None if force_close else keepalive_timeout,
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=timeout or aiohttp.ClientTimeout(total=300, sock_connect=30),
        trust_env=False,
        auto_decompress=auto_decompress,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        trace_configs=[_refuse_redirects()],
    )


def _refuse_redirects() -> aiohttp.TraceConfig:
    """Return a trace that fails a call, a WebSocket handshake included, before it follows a redirect."""
    traced = aiohttp.TraceConfig()

    async def refuse(
        _session: aiohttp.ClientSession, _context: SimpleNamespace, seen: aiohttp.TraceRequestRedirectParams
    ) -> None:
        seen.response.close()
        raise EgressRefused("the server redirects, and redirects are not followed")

    traced.on_request_redirect.append(refuse)
    return traced
