"""An httpx transport that checks the address of every connection, for SDKs that are built on httpx."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from egress.guard import EgressGuard
from egress.policy import EgressRefused

CONNECT_SECONDS = 10.0


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Resolves a name, checks each address, and connects to an address that was checked."""

    def __init__(self, guard: EgressGuard) -> None:
        self._guard = guard
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first allowed address that answers; raises httpcore.ConnectError."""
        addresses = await self._allowed(host, port)
        seconds = (timeout or CONNECT_SECONDS) / len(addresses)
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(address, port, seconds, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(addresses[-1], port, seconds, local_address, socket_options)

    async def _allowed(self, host: str, port: int) -> list[str]:
        """Return the addresses of a name that may be connected to; raises httpcore.ConnectError if none."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        allowed: list[str] = []
        refused: EgressRefused | None = None
        for address in dict.fromkeys(str(one[4][0]) for one in found):
            try:
                self._guard.check(address, port)
            except EgressRefused as error:
                refused = error
            else:
                allowed.append(address)
        if not allowed:
            raise httpcore.ConnectError(str(refused or "the name has no address")) from refused
        return allowed

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Refuse, because no URL names a socket file."""
        del path, timeout, socket_options
        raise httpcore.ConnectError("connections to socket files are not allowed")

    async def sleep(self, seconds: float) -> None:
        """Wait between two attempts to connect."""
        await self._inner.sleep(seconds)


class GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx's transport with connections that the guard checks; proxies of the environment are not used."""

    def __init__(self, guard: EgressGuard, *, limit: int) -> None:
        context = httpx.create_ssl_context(trust_env=False)
        super().__init__(verify=context, trust_env=False)
        # httpx has no parameter for the network backend, so its pool is replaced by an equal one.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=limit,
            max_keepalive_connections=limit,
            keepalive_expiry=5.0,
            network_backend=GuardedBackend(guard),
        )
