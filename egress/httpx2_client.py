"""An httpx2 client that checks the address of every connection and bounds every answer.

For SDKs that are built on httpx2. Redirects and compressed answers are refused, so that a server can neither
lead the client to another address nor send more than the limit.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import httpcore2
import httpx2

from egress.guard import EgressGuard
from egress.json_values import MAX_ANSWER_VALUES, JsonValues
from egress.policy import EgressRefused, refusal
from egress.urls import Origin

GuardedClient = httpx2.AsyncClient
"""What `open_httpx2_client` returns."""

CONNECT_SECONDS = 10.0
MAX_CONNECTIONS = 8
_REDIRECTS = range(300, 400)


@cache
def _tls_context() -> ssl.SSLContext:
    """Return the TLS context that all clients share: each would take 0.75 MB and 36 ms."""
    return httpx2.create_ssl_context(trust_env=False)


async def allowed_addresses(guard: EgressGuard, host: str, port: int) -> list[str]:
    """Return the addresses of a name to which a client may connect; raises OSError if there are none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    allowed: list[str] = []
    refused: EgressRefused | None = None
    for address in dict.fromkeys(str(one[4][0]) for one in found):
        try:
            guard.check(address, port)
        except EgressRefused as error:
            refused = error
        else:
            allowed.append(address)
    if not allowed:
        raise refused or OSError("the name has no address")
    return allowed


class GuardedHttpx2Backend(httpcore2.AsyncNetworkBackend):
    """Resolves a name, checks each address, and connects to an address that was checked."""

    def __init__(self, guard: EgressGuard) -> None:
        self._guard = guard
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first allowed address that answers; raises httpcore2.ConnectError."""
        try:
            addresses = await allowed_addresses(self._guard, host, port)
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        seconds = (timeout or CONNECT_SECONDS) / len(addresses)
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(address, port, seconds, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(addresses[-1], port, seconds, local_address, socket_options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Refuse, because no URL names a socket file."""
        del path, timeout, socket_options
        raise httpcore2.ConnectError("connections to socket files are not allowed")

    async def sleep(self, seconds: float) -> None:
        """Wait between two attempts to connect."""
        await self._inner.sleep(seconds)


Report = Callable[[str], None]
"""Receives why an answer was not read to its end: an SDK may drop the error."""


def _report_nothing(_reason: str) -> None:
    """Leave it to the error."""


class BoundedStream(httpx2.AsyncByteStream):
    """The body of an answer; reading beyond the limits is reported and raises httpx2.ReadError.

    `limit` is of its bytes; of JSON values it may have `MAX_ANSWER_VALUES`.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, limit: int, report: Report = _report_nothing) -> None:
        self._inner = inner
        self._limit = limit
        self._report = report

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received, values = 0, JsonValues()
        async for chunk in self._inner:
            received += len(chunk)
            if received > self._limit:
                raise self._too_long(f"the answer is longer than {self._limit} bytes")
            if values.add(chunk) > MAX_ANSWER_VALUES:
                raise self._too_long(f"the answer has more than {MAX_ANSWER_VALUES} JSON values")
            yield chunk

    def _too_long(self, reason: str) -> httpx2.ReadError:
        self._report(reason)
        return httpx2.ReadError(reason)

    async def aclose(self) -> None:
        """Close the connection of the answer."""
        await self._inner.aclose()


class GuardedHttpx2Transport(httpx2.AsyncHTTPTransport):
    """httpx2's transport with guarded connections and bounded answers; proxies are not used."""

    def __init__(self, guard: EgressGuard, *, max_bytes: int, report: Report = _report_nothing) -> None:
        context = _tls_context()
        super().__init__(verify=context, trust_env=False)
        self._max_bytes = max_bytes
        self._report = report
        # httpx2 has no parameter for the network backend, so its pool is replaced by an equal one.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_CONNECTIONS,
            keepalive_expiry=5.0,
            network_backend=GuardedHttpx2Backend(guard),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; raises httpx2.TransportError for a redirect or a compressed answer."""
        response = await super().handle_async_request(request)
        problem = _problem(response)
        if problem is not None:
            await response.aclose()
            raise httpx2.RemoteProtocolError(problem, request=request)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = BoundedStream(response.stream, self._max_bytes, self._report)
        return response


def _problem(response: httpx2.Response) -> str | None:
    if response.status_code in _REDIRECTS:
        return "the server redirects, and redirects are not followed"
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        return "the server compresses its answer, although it was asked not to"
    return None


async def post_json(
    client: httpx2.AsyncClient, url: str, message: Mapping[str, Any], *, headers: Mapping[str, str], auth: Any
) -> int:
    """Post a message with this authentication and return the answer's status; raises OSError.

    The answer's body is not read, so that one that never ends does not matter.
    """
    try:
        async with client.stream("POST", url, json=dict(message), headers=dict(headers), auth=auth) as answer:
            return answer.status_code
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        refused = refusal(error)
        raise OSError(refused.why if refused is not None else str(error) or type(error).__name__) from error


def open_httpx2_client(
    guard: EgressGuard,
    *,
    headers: Mapping[str, str],
    read_seconds: float,
    max_bytes: int,
    guards: Mapping[Origin, EgressGuard] = MappingProxyType({}),
    report: Report = _report_nothing,
) -> httpx2.AsyncClient:
    """Return a client whose connections the guard checks; the caller closes it.

    `guards` replace the guard for requests to some origins. `report` is told why an answer was cut.
    """
    return httpx2.AsyncClient(
        transport=GuardedHttpx2Transport(guard, max_bytes=max_bytes, report=report),
        mounts={
            str(origin): GuardedHttpx2Transport(one, max_bytes=max_bytes, report=report)
            for origin, one in guards.items()
        },
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=read_seconds),
        follow_redirects=False,
        trust_env=False,
    )
