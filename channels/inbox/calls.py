"""Make one HTTP call through a guarded session: a bounded response, no redirect, the port's errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp

from channels.errors import Ambiguous, ChannelError, Rejected, Unreachable, parse_wait
from channels.message import File
from egress.guard import EgressGuard
from egress.policy import EgressRefused, refusal
from egress.sessions import open_session
from egress.urls import is_same_origin

MAX_RESPONSE_BYTES = 20_000_000
MAX_FILE_BYTES = 50_000_000
TIMEOUT_SECONDS = 30.0
"""Seconds a response may take; a slower one raises Ambiguous."""

_REPEATED = {HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT}
"""The redirects after which the same request is made elsewhere."""

S = TypeVar("S")
A = TypeVar("A")

CONNECTION_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, EgressRefused, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A response that was read to its end; header names are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON, or None if it is not JSON."""
        return parse_json(self.body)

    @property
    def retry_after(self) -> float | None:
        """The seconds of the header Retry-After, or None."""
        return parse_retry_after(self.headers)


def connecting(
    make: Callable[[aiohttp.ClientSession, S], A],
) -> Callable[[S, EgressGuard], AbstractAsyncContextManager[A]]:
    """Return what yields the API that `make` returns for a session and settings, and closes it on exit."""

    @asynccontextmanager
    async def connect(settings: S, guard: EgressGuard) -> AsyncIterator[A]:
        # A pooled connection may be dead without our knowing; a send on it would be ambiguous.
        async with open_session(guard, limit=32, force_close=True) as session:
            yield make(session, settings)

    return connect


async def call(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    what: str,
    timeout: float = TIMEOUT_SECONDS,
    **options: Any,
) -> HttpResponse:
    """Make one call; raises Unreachable if nothing was sent, Ambiguous if the response is missing.

    `what` names the call in errors: the URL may contain a secret.
    """
    limit = aiohttp.ClientTimeout(total=timeout, sock_connect=min(10.0, timeout))
    try:
        async with session.request(method, url, allow_redirects=False, timeout=limit, **options) as response:
            body = await read_bounded(response)
            return HttpResponse(status=response.status, headers=response.headers, body=body)
    except CONNECTION_ERRORS as error:
        raise connection_error(what, error) from None  # the URL may contain a secret


async def call_redirected(
    session: aiohttp.ClientSession, method: str, url: str, *, origin: str, **options: Any
) -> HttpResponse:
    """Make one call, and follow one redirect within an origin; `options` are those of `call`."""
    response = await call(session, method, url, **options)
    target = response.headers.get("Location", "")
    if response.status in _REPEATED and is_same_origin(target, origin):
        return await call(session, method, target, **options)
    return response


async def fetch(session: aiohttp.ClientSession, url: str) -> AsyncIterator[bytes]:
    """Yield the bytes of a file at a URL that a platform gave; no token is sent."""
    if not url.startswith(("https://", "http://")):
        raise Rejected("the reference is not the URL of a file")
    try:
        async with session.get(url, allow_redirects=False) as response:
            if response.status != HTTPStatus.OK:
                raise Rejected(f"download: HTTP {response.status}")
            async for chunk in limited(response.content.iter_chunked(65536), MAX_FILE_BYTES):
                yield chunk
    except CONNECTION_ERRORS as error:
        raise connection_error("download", error) from None


async def read_bounded(response: aiohttp.ClientResponse, limit: int = MAX_RESPONSE_BYTES) -> bytes:
    """Return the body of a response; raises ValueError if it is longer than the limit."""
    parts, size = [], 0
    async for chunk in response.content.iter_chunked(65536):
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            raise ValueError("the response is too long")
    return b"".join(parts)


def connection_error(what: str, error: Exception) -> ChannelError:
    """Return Unreachable if no connection was made, Ambiguous if it broke; a URL is not shown."""
    before = isinstance(
        error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL
    )
    refused = refusal(error)
    kind = Unreachable if before else Ambiguous
    return kind(f"{what}: {refused.why if refused else type(error).__name__}")


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of the header Retry-After, a number or a date; None without one that makes sense."""
    text = headers.get("Retry-After", "")
    return parse_seconds(text) if text.isdecimal() else parse_wait(text) or None


def parse_seconds(text: str) -> float | None:
    """Return the whole number of seconds of a header, or None."""
    return float(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else None  # noqa: PLR2004


def parse_json(body: bytes) -> Any:
    """Return the JSON value of a body, or None."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def ensure_accepted(file: File, limit: int) -> None:
    """Raise Rejected if a file that is to be sent has more bytes than the platform accepts."""
    if len(file.content) > limit:
        raise Rejected(f"the platform accepts at most {limit / 1_000_000:.3g} MB here")


def ensure_small(size: object, limit: int) -> None:
    """Raise Rejected if a platform states that a file to be received has more than `limit` bytes."""
    if isinstance(size, int) and size > limit:
        raise Rejected(f"the file has {size} bytes, more than {limit}")


async def limited(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """Yield the bytes of a file that is received; raises Rejected once there are more than `limit`."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise Rejected(f"the file has more than {limit} bytes, the most that is downloaded")
        yield chunk
