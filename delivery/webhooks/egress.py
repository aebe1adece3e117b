"""The HTTP client for webhooks: one session per scope of the egress policy.

Redirects are not followed, cookies are not stored, and bodies are not decompressed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp.abc import AbstractResolver

from delivery.fair_scheduler import PoolSize
from delivery.fair_threads import FairThreadPool
from egress.guard import EgressGuard
from egress.policy import EgressPolicy, EgressRefused, EgressScope
from egress.sessions import LOOKUP_THREADS, LookUp, Resolver, open_session

BODY_LIMIT = 64 * 1024
"""The most bytes that are read of a response's body."""

_BODY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressResponse:
    """The response: the status decides about the outcome, the body is for the attempt log."""

    status: int
    retry_after: str | None
    body: bytes


def fair_resolver(*, threads: int = LOOKUP_THREADS, look_up: LookUp = socket.getaddrinfo) -> Resolver:
    """Return a resolver whose threads are shared fairly among accounts."""
    return Resolver(executor=FairThreadPool(PoolSize(places=threads), name="names"), look_up=look_up)


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
        self._resolver = self._resolver or fair_resolver()
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
        return open_session(
            EgressGuard(policy=self.policy, scope=scope),
            resolver=self._resolver,
            timeout=self._timeout,
            limit=0,  # the worker bounds the requests, and shares them fairly among accounts
            # Many receivers close an idle connection after five seconds, and a failed POST is not repeated.
            keepalive_timeout=2.0,
            auto_decompress=False,
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
