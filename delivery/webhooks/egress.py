"""Which URLs may be called on a user's behalf, and the only HTTP session that calls them.

The address is judged in the socket factory, after resolution and for every connection, so that a literal,
a redirect, a rebinding resolver or a cached name cannot slip past: the address judged is the address
connected to. Redirects are not followed, proxies and .netrc of the environment are not used, cookies are
not kept, bodies are not unpacked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
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

from delivery.webhooks.addresses import IpAddress, IpNetwork, is_local, is_public, is_within, parse_networks

BODY_LIMIT = 64 * 1024
"""No more than this is ever read of an answer's body."""

_URL_LIMIT = 2048
_PUBLIC_PORTS = frozenset({("https", 443), ("http", 80)})
_BODY_SECONDS = 5.0


class EgressRefused(OSError):
    """This URL may not be called: its scheme, port or address is closed to account records."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class EgressScope(Enum):
    """How far a session's connections may go."""

    PUBLIC = auto()
    ALLOWED = auto()
    TRUSTED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """What account records may call: public addresses at the usual ports, allowed networks at any port."""

    allow: tuple[IpNetwork, ...] = ()
    ports: frozenset[tuple[str, int]] = field(default=_PUBLIC_PORTS)

    @classmethod
    def parse(cls, networks: str) -> EgressPolicy:
        """Return rules from comma-separated CIDRs; raises ValueError naming the first wrong one."""
        return cls(allow=parse_networks(networks.split(",")))

    def check_url(self, url: str, *, trusted: bool = False) -> tuple[URL, EgressScope]:
        """Return the parsed URL and how far it may reach; raises EgressRefused for what is refused already.

        Names are not resolved here: passing says that nothing is wrong yet, not that a call is allowed.
        """
        parsed = _parse(url)
        if trusted:
            return parsed, EgressScope.TRUSTED
        if parsed.user is not None or parsed.password is not None:
            raise EgressRefused("a URL with a user name or password in it is refused")
        reach = EgressScope.PUBLIC if (parsed.scheme, parsed.port) in self.ports else EgressScope.ALLOWED
        if reach is EgressScope.ALLOWED and not self.allow:
            raise EgressRefused("only https at port 443 and http at port 80 are allowed")
        if _address(parsed.raw_host or "") is not None:
            self.check_host(parsed.raw_host or "", reach)
        return parsed, reach

    def check_host(self, host: str, scope: EgressScope) -> None:
        """Raise EgressRefused unless a connection to the address `host` is within `reach`."""
        if scope is EgressScope.TRUSTED:
            return
        address = _address(host)
        if address is None:
            raise EgressRefused("the connection does not go to an address")
        if is_within(address, self.allow):
            return
        if scope is EgressScope.ALLOWED:
            raise EgressRefused("only https at port 443 and http at port 80 are allowed at this address")
        # One text for every address, so that a name with several of them still fails as refused.
        if not is_public(address) or is_local(address):
            raise EgressRefused("the address is private, local, reserved or this machine's own")


@lru_cache(maxsize=1024)
def _parse(url: str) -> URL:
    if len(url) > _URL_LIMIT or not url.isprintable():
        raise EgressRefused("the URL is too long or has control characters in it")
    try:
        parsed = URL(url)
        usable = parsed.scheme in {"http", "https"} and parsed.host and parsed.port
    except ValueError:
        raise EgressRefused("the URL cannot be read") from None
    if not usable:
        raise EgressRefused("the URL is not http or https with a host")
    return parsed


@lru_cache(maxsize=1024)
def _address(host: str) -> IpAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressResponse:
    """What came back: the status line decides, the rest is for the log."""

    status: int
    retry_after: str | None
    body: bytes


class Resolver(AbstractResolver):
    """Resolves names in threads of its own, so that slow name servers hold up nobody else's work."""

    def __init__(self, *, threads: int = 16) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
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
        """Let the threads go; one that still waits for a name server is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Egress:
    """The door out: an async context manager over one session for each Reach (never sharing connections)."""

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
        self._sessions = {reach: self._open(reach) for reach in EgressScope}
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
            limit=512,
            # Many receivers close an idle connection after five seconds, and a POST is not repeated.
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
        """POST once and return the answer; raises EgressRefused, aiohttp.ClientError or TimeoutError."""
        parsed, reach = self.policy.check_url(url, trusted=trusted)
        try:
            async with self._sessions[reach].post(
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
    """Return the beginning of a body, as far as it comes in time; a body that breaks off is no failure."""
    kept = bytearray()
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_BODY_SECONDS):
            while len(kept) < BODY_LIMIT:
                chunk = await response.content.read(BODY_LIMIT - len(kept))
                if not chunk:
                    return bytes(kept)
                kept += chunk
    response.close()
    return bytes(kept)
