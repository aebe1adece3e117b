"""Make the requests of the Bot API with aiohttp: bounded responses, files in chunks, no redirects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp

from channels.telegram.errors import BotApiError, NetworkError, NotSent
from channels.telegram.form import contains_files, encode
from egress.policy import EgressRefused

TIMEOUT_SECONDS = 30.0
"""Seconds a response may take; a slower one raises Ambiguous."""

CONNECT_SECONDS = 10.0
UPLOAD_SECONDS = 300.0
"""Seconds that a request with a file may take in addition."""

MAX_RESPONSE_BYTES = 20_000_000
_CHUNK = 65536
_ONE_WRITE = 32768
"""A body of at most so many bytes is written together with its headers, or not at all."""

_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, EgressRefused, ValueError)


class HttpClient:
    """The HTTP client of one bot; the session belongs to the caller, who closes it."""

    __slots__ = ("_session",)

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def call(self, url: str, parameters: Mapping[str, Any], *, timeout: float) -> Any:
        """Call a method once and return its result.

        Raises NetworkError without a response, BotApiError for one that refuses or has no result.
        """
        options: dict[str, Any] = {}
        limits = _limits(timeout, has_files=contains_files(parameters))
        try:
            options = encode(parameters)
            async with self._session.post(url, allow_redirects=False, timeout=limits, **options) as response:
                payload = await _read(response)
        except _ERRORS as error:
            kind = NotSent if _is_before_sending(error, options) else NetworkError
            raise kind(type(error).__name__) from error
        if response.status != HTTPStatus.OK:
            raise BotApiError(response.status, _parse_object(payload))
        return _parse_result(payload)

    async def stream(self, url: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; raises NetworkError or BotApiError."""
        limits = _limits(TIMEOUT_SECONDS, has_files=True)
        try:
            async with self._session.get(url, allow_redirects=False, timeout=limits) as response:
                if response.status != HTTPStatus.OK:
                    raise BotApiError(response.status, {})
                async for chunk in response.content.iter_chunked(_CHUNK):
                    yield chunk
        except _ERRORS as error:
            raise NetworkError(type(error).__name__) from error


def _is_before_sending(error: Exception, options: Mapping[str, Any]) -> bool:
    """Return whether no byte of a request was sent: no connection, or one that was closed meanwhile."""
    if isinstance(error, _NOT_CONNECTED):
        return True
    body = options.get("data")
    is_one_write = isinstance(body, bytes) and len(body) <= _ONE_WRITE
    return is_one_write and isinstance(error.__cause__, aiohttp.ClientConnectionResetError)


async def _notice_closed_connections() -> None:
    """Let the event loop read the sockets, so that no call is written to one that the server has closed.

    Such a call would be ambiguous, although the server has not seen it. One step reads the end of a
    connection, one passes it through TLS, and one takes the connection out of the pool.
    """
    for _ in range(3):
        await asyncio.sleep(0)


def _limits(seconds: float, *, has_files: bool) -> aiohttp.ClientTimeout:
    """Return time limits: for a free connection and to connect, for the response, and for all together."""
    total = CONNECT_SECONDS + seconds + (UPLOAD_SECONDS if has_files else 0.0)
    return aiohttp.ClientTimeout(
        total=total, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=seconds
    )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise ValueError(f"the response has more than {MAX_RESPONSE_BYTES} bytes")
    return b"".join(parts)


def _parse_object(payload: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(payload.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _parse_result(payload: bytes) -> Any:
    answer = _parse_object(payload)
    if answer.get("ok") is not True or "result" not in answer:
        status = answer.get("error_code")
        raise BotApiError(status if isinstance(status, int) else 502, answer)
    return answer["result"]
