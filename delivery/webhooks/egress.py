"""The HTTP client for URLs of users, and the policy that decides which URLs it may call.

The address is checked in the socket factory, after name resolution and for every connection. So the checked
address is the connected address, also with literals, redirects, rebinding resolvers and cached names.
Redirects are not followed, proxies and .netrc of the environment are not used, cookies are not stored, and
bodies are not decompressed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from delivery.fair_scheduler import PoolSize
from delivery.fair_threads import FairThreadPool
from delivery.webhooks.addresses import IpAddress, IpNetwork, is_local, is_public, is_within, parse_networks

BODY_LIMIT = 64 * 1024
"""The most bytes that are read of a response's body."""

_URL_LIMIT = 2048
_PUBLIC_PORTS = frozenset({("https", 443), ("http", 80)})
_BODY_SECONDS = 5.0


class EgressRefused(OSError):
    """The policy does not allow this URL, because of its scheme, port or address."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class EgressScope(Enum):
    """The addresses to which a session may connect."""

    PUBLIC = auto()
    ALLOWED = auto()
    TRUSTED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """The allowed targets: public addresses at the usual ports, and the networks `allow` at any port."""

    allow: tuple[IpNetwork, ...] = ()
    ports: frozenset[tuple[str, int]] = field(default=_PUBLIC_PORTS)

    @classmethod
    def parse(cls, networks: str) -> EgressPolicy:
        """Return a policy from comma-separated CIDRs; raises ValueError with the first invalid one."""
        return cls(allow=parse_networks(networks.split(",")))

    def check_url(self, url: str, *, trusted: bool = False) -> tuple[URL, EgressScope]:
        """Return the parsed URL and its scope; raises EgressRefused if the URL alone is not allowed.

        Names are not resolved here, so a call to an accepted URL may still be refused.
        """
        parsed = _parse(url)
        if trusted:
            return parsed, EgressScope.TRUSTED
        if parsed.user is not None or parsed.password is not None:
            raise EgressRefused("the URL must not contain a user name or password")
        scope = EgressScope.PUBLIC if (parsed.scheme, parsed.port) in self.ports else EgressScope.ALLOWED
        if scope is EgressScope.ALLOWED and not self.allow:
            raise EgressRefused("only https at port 443 and http at port 80 are allowed")
        if _address(parsed.raw_host or "") is not None:
            self.check_host(parsed.raw_host or "", scope)
        return parsed, scope

    def check_host(self, host: str, scope: EgressScope) -> None:
        """Raise EgressRefused unless a connection to the address `host` is within `scope`."""
        if scope is EgressScope.TRUSTED:
            return
        address = _address(host)
        if address is None:
            raise EgressRefused("the connection's host is not an IP address")
        if is_within(address, self.allow):
            return
        if scope is EgressScope.ALLOWED:
            raise EgressRefused("only https at port 443 and http at port 80 are allowed at this address")
        # One text for every address, so that a name with several addresses is still reported as refused.
        if not is_public(address) or is_local(address):
            raise EgressRefused("the address is private, local, reserved or this machine's own")


@lru_cache(maxsize=1024)
def _parse(url: str) -> URL:
    if len(url) > _URL_LIMIT or not url.isprintable():
        raise EgressRefused(f"the URL is longer than {_URL_LIMIT} characters or contains control characters")
    try:
        parsed = URL(url)
        usable = parsed.scheme in {"http", "https"} and parsed.host and parsed.port
    except ValueError:
        raise EgressRefused("the URL cannot be parsed") from None
    if not usable:
        raise EgressRefused("the URL must have the scheme http or https, and a host")
    return parsed


@lru_cache(maxsize=1024)
def _address(host: str) -> IpAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressResponse:
    """The response: the status decides about the outcome, the body is for the attempt log."""

    status: int
    retry_after: str | None
    body: bytes


LookUp = Callable[[str, int, int, int], list[Any]]
"""The function `socket.getaddrinfo`, with its host, port, family and type."""


class Resolver(AbstractResolver):
    """Resolves names in its own threads, so that slow name servers do not delay other work.

    The threads are shared fairly among accounts.
    """

    def __init__(self, *, threads: int = 16, look_up: LookUp = socket.getaddrinfo) -> None:
        self._look_up = look_up
        self._threads = FairThreadPool(PoolSize(places=threads), name="names")

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


class Egress:
    """The HTTP client: an async context manager with one session per scope, which share no connections."""

    def __init__(
        self,
        policy: EgressPolicy | None = None,
        *,
        total_seconds: float = 20.0,
        connect_seconds: float = 10.0,
        resolver: AbstractResolver | None = None,
        user_agent: str = "Dovecote",
    ) -> None:
        self.policy = policy or EgressPolicy()
        self._timeout = aiohttp.ClientTimeout(total=total_seconds, sock_connect=connect_seconds)
        self._resolver = resolver
        self._user_agent = user_agent
        self._sessions: dict[EgressScope, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Self:
        self._resolver = self._resolver or Resolver()
        self._sessions = {scope: self._open(scope) for scope in EgressScope}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions.values():
            await session.close()
        if self._resolver is not None:
            await self._resolver.close()

    def _open(self, scope: EgressScope) -> aiohttp.ClientSession:
        def guarded(info: tuple[Any, ...]) -> socket.socket:
            family, kind, protocol, _, address = info
            self.policy.check_host(str(address[0]), scope)
            return socket.socket(family=family, type=kind, proto=protocol)

        connector = aiohttp.TCPConnector(
            socket_factory=guarded,
            resolver=self._resolver,
            limit=0,  # the worker bounds the requests, and shares them fairly among accounts
            # Many receivers close an idle connection after five seconds, and a failed POST is not repeated.
            keepalive_timeout=2.0,
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            trust_env=False,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"},
        )

    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, trusted: bool = False
    ) -> EgressResponse:
        """POST once and return the response; raises EgressRefused, aiohttp.ClientError or TimeoutError."""
        parsed, scope = self.policy.check_url(url, trusted=trusted)
        try:
            async with self._sessions[scope].post(
                parsed, data=body, headers=headers, allow_redirects=False
            ) as response:
                return EgressResponse(
                    status=response.status,
                    retry_after=response.headers.get("Retry-After"),
                    body=await _read_some(response),
                )
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, EgressRefused):
                raise error.os_error from error
            raise


async def _read_some(response: aiohttp.ClientResponse) -> bytes:
    """Return the beginning of a body, as far as it arrives in time; an interrupted body is no error."""
    content = bytearray()
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_BODY_SECONDS):
            while len(content) < BODY_LIMIT:
                chunk = await response.content.read(BODY_LIMIT - len(content))
                if not chunk:
                    return bytes(content)
                content += chunk
    response.close()
    return bytes(content)
