"""The HTTP session that Slack's SDK works with: guarded, without redirects or proxies, responses bounded.

The SDK needs of a session only `closed` and `request`. Each request is made once. A failure is raised here as
the port's error, because the SDK would not tell a refused connection from a broken one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from channels.errors import Ambiguous, ChannelError, Rejected, Unauthorized, Unreachable, parse_wait
from channels.inbox.calls import CONNECTION_ERRORS, connection_error, parse_json, read_bounded
from channels.slack.errors import not_found, rate_limited

REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
MAX_RESPONSE_BYTES = 4_000_000
RESPONSE_URL = "response_url"
_REQUEST_PARTS = ("headers", "json", "data", "params")

SDK_LOG = logging.getLogger("channels.slack.sdk")
"""The SDK's own log: at lower levels it shows the texts of messages and the URLs of sockets."""

SDK_LOG.setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackResponseBody:
    """What the SDK reads of a response."""

    status: int
    headers: Mapping[str, str]
    payload: bytes
    content_type: str = "application/json"

    async def json(self) -> Any:
        """Return the parsed body; raises ValueError."""
        return json.loads(self.payload)

    async def text(self) -> str:
        """Return the body as text."""
        return self.payload.decode(errors="replace")

    async def read(self) -> bytes:
        """Return the body."""
        return self.payload


class GuardedSession:
    """The session of one app for `AsyncWebClient` and `AsyncWebhookClient`."""

    closed = False

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._base_url = base_url

    @asynccontextmanager
    async def request(self, verb: str, url: str, **given: Any) -> AsyncIterator[SlackResponseBody]:
        """Make one request and yield its response, which is a 200; raises ChannelError."""
        yield await self._exchange(
            verb, url, {name: given[name] for name in _REQUEST_PARTS if given.get(name)}
        )

    async def _exchange(self, verb: str, url: str, given: Mapping[str, Any]) -> SlackResponseBody:
        method = url.removeprefix(self._base_url) if url.startswith(self._base_url) else RESPONSE_URL
        try:
            async with self._session.request(
                verb, url, allow_redirects=False, timeout=REQUEST_TIMEOUT, **given
            ) as response:
                payload = await read_bounded(response, MAX_RESPONSE_BYTES)
        except CONNECTION_ERRORS as error:
            raise connection_error(method, error) from None  # a response_url is a secret
        if response.status != HTTPStatus.OK:
            raise http_error(method, response)
        if method != RESPONSE_URL and not _is_of_slack(payload):
            raise Ambiguous(f"{method}: the response is not Slack's")
        return SlackResponseBody(status=response.status, headers=response.headers, payload=payload)


def _is_of_slack(payload: bytes) -> bool:
    answer = parse_json(payload)
    return isinstance(answer, dict) and isinstance(answer.get("ok"), bool)


def http_error(method: str, response: aiohttp.ClientResponse) -> ChannelError:
    """Return the error for a response whose status is not 200."""
    if response.status == HTTPStatus.TOO_MANY_REQUESTS:
        return rate_limited(method, retry_after(response.headers))
    if response.status == HTTPStatus.NOT_FOUND:
        return not_found(method)
    detail = f"{method}: HTTP {response.status}"
    if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Ambiguous(detail)
    if response.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return Rejected(detail) if method == RESPONSE_URL else Unauthorized(detail)  # that URL has no token
    return Rejected(detail) if response.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else Unreachable(detail)


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that Slack asks to wait, 30 if it names none."""
    return parse_wait(headers.get("Retry-After", "")) or 30.0
