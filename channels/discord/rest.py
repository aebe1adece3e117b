"""discord.py's HTTP client at our endpoint: guarded connections, one attempt per call, no waiting.

The library repeats calls after 429 and 5xx, and waits while a rate limit's bucket is empty. Here both raise
at once: the gateway stores the wait and repeats the delivery. A contract test holds the names of the
library's private parts that are used here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from functools import lru_cache
from http import HTTPStatus
from types import TracebackType
from typing import Any

import aiohttp
import discord
from discord.http import HTTPClient, MultipartParameters, Ratelimit, Route

from channels.discord.invalid_requests import InvalidRequests
from channels.errors import RateLimited, parse_wait

CONNECT_TIMEOUT_SECONDS = 10.0
TIMEOUT_SECONDS = 30.0
"""Seconds a response may take; a slower one raises Ambiguous."""

CALLBACK_TIMEOUT_SECONDS = 3.0
"""Seconds in which Discord expects the initial response to an interaction."""

MAX_RATE_LIMIT_WAIT_SECONDS = 1e-3
"""Seconds the library may wait for a rate limit; its constructor accepts nothing below 30."""

MAX_BUCKETS, MAX_BUCKET_SECONDS = 10_000, 600.0
"""The number of buckets that are remembered. Longer announced waits are ignored."""

CHUNK_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
MAX_FRAME_BYTES = 64 * 1024 * 1024
CLOSE_SECONDS = 0.3
"""Seconds the gateway may take to confirm that a connection is closed."""


class FailedResponse(Exception):
    """A response that is no success, with its complete body."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.headers = headers
        self.body = body


class RefusingBucket(Ratelimit):
    """A rate limit's bucket that refuses calls while it is empty; the library's own would wait."""

    __slots__ = ()

    def __init__(self) -> None:
        # The library's queue of waiting calls is left out: there is a bucket for each room and interaction.
        self.remaining, self.outgoing = 1, 0
        self.expires = None

    async def acquire(self) -> None:
        """Count a call; raises discord.RateLimited while the bucket is known to be empty."""
        now = asyncio.get_running_loop().time()
        if self.expires is not None and self.remaining <= 0 and now < self.expires:
            raise discord.RateLimited(self.expires - now)
        self.outgoing += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End a call; no other call waits for it."""
        self.outgoing -= 1

    def update(self, response: aiohttp.ClientResponse, *, use_clock: bool = False) -> None:
        """Record what a response says about the bucket; malformed and very long waits are ignored."""
        del use_clock
        wait = parse_wait(response.headers.get("X-RateLimit-Reset-After"))
        is_empty = response.headers.get("X-RateLimit-Remaining") == "0" and wait < MAX_BUCKET_SECONDS
        self.remaining = 0 if is_empty else 1
        self.expires = asyncio.get_running_loop().time() + wait


@lru_cache(maxsize=1024)
def invalid_requests_at(base: str) -> InvalidRequests:
    """Return the count of invalid requests to one API, which Discord keeps for an address, not for a bot."""
    del base
    return InvalidRequests()


class RestClient(HTTPClient):
    """The calls of one bot, or with `token` None those that need only an interaction's token."""

    def __init__(self, base: str, session: aiohttp.ClientSession, *, token: str | None) -> None:
        super().__init__(asyncio.get_running_loop(), session.connector)
        self._HTTPClient__session = session
        self._global_over = asyncio.Event()
        self._global_over.set()
        self._base = base
        self._invalid = invalid_requests_at(base)
        self.max_ratelimit_timeout = MAX_RATE_LIMIT_WAIT_SECONDS
        self.token = token

    def __repr__(self) -> str:
        return "RestClient(<token hidden>)"

    def get_ratelimit(self, key: str) -> Ratelimit:
        """Return the bucket of a key; the least recently used one goes when there are too many."""
        bucket = self._buckets.pop(key, None) or RefusingBucket()
        self._buckets[key] = bucket
        if len(self._buckets) > MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return bucket

    async def request(self, route: Route, **options: Any) -> Any:
        """Make one call and return its parsed response; raises FailedResponse or an error of aiohttp."""
        wait = self._invalid.wait()
        if wait:
            raise RateLimited(wait, scope="account")
        route.url = f"{self._base}{route.url.removeprefix(Route.BASE)}"
        options.setdefault("timeout", _timeout(TIMEOUT_SECONDS, has_files=bool(options.get("files"))))
        await _detect_closed_connections()
        answer = await super().request(
            route, allow_redirects=False, raise_for_status=self._check_response, **options
        )
        if not isinstance(answer, str):
            return answer
        return json.loads(answer) if answer else None  # JSON of a content type with parameters

    async def _check_response(self, response: aiohttp.ClientResponse) -> None:
        """Read the body, of at most MAX_RESPONSE_BYTES; raises FailedResponse before the library repeats."""
        content = await _read(response)
        response._body = content  # noqa: SLF001 - the library reads the body once more
        self._invalid.record(response.status, response.headers)
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise FailedResponse(response.status, response.headers.copy(), content)

    async def ws_connect(self, url: str, *, compress: int = 0) -> aiohttp.ClientWebSocketResponse:
        """Connect to the gateway; frames are bounded, and so is the time for closing."""
        session: aiohttp.ClientSession = self._HTTPClient__session
        return await session.ws_connect(
            url,
            max_msg_size=MAX_FRAME_BYTES,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
            autoclose=False,
            headers={"User-Agent": self.user_agent},
            compress=compress,
        )


class InteractionClient(RestClient):
    """The calls that answer interactions; discord.py has them only for its own sessions."""

    def respond(self, interaction: str, token: str, response: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        """Send the initial response."""
        place = {"webhook_id": interaction, "webhook_token": token}
        route = Route("POST", "/interactions/{webhook_id}/{webhook_token}/callback", **place)
        return self.request(route, json=response, timeout=_timeout(CALLBACK_TIMEOUT_SECONDS))

    def follow_up(
        self, application: str, token: str, parameters: MultipartParameters
    ) -> Coroutine[Any, Any, Any]:
        """Send a further message."""
        place = {"webhook_id": application, "webhook_token": token}
        return self.request(
            Route("POST", "/webhooks/{webhook_id}/{webhook_token}", **place), json=parameters.payload
        )

    def edit_original(
        self, application: str, token: str, parameters: MultipartParameters
    ) -> Coroutine[Any, Any, Any]:
        """Edit the message of the initial response."""
        return self.request(_original(application, token), json=parameters.payload)


def _original(application: str, token: str) -> Route:
    where = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
    return Route("PATCH", where, webhook_id=application, webhook_token=token)


def _timeout(seconds: float, *, has_files: bool = False) -> aiohttp.ClientTimeout:
    """Return the timeout of a call; one with files has it for the response alone, after all was sent."""
    total, read = (None, seconds) if has_files else (seconds, None)
    return aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_TIMEOUT_SECONDS, sock_read=read)


async def _detect_closed_connections() -> None:
    """Let the event loop notice pooled connections that were closed; a write there is ambiguous."""
    for _ in range(3):  # one round each: select, end of stream, connection lost
        await asyncio.sleep(0)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read a response of at most MAX_RESPONSE_BYTES."""
    content = await response.content.read(MAX_RESPONSE_BYTES + 1)
    while len(content) <= MAX_RESPONSE_BYTES and (more := await response.content.read(CHUNK_BYTES)):
        content += more
    if len(content) > MAX_RESPONSE_BYTES:
        response.close()
        raise aiohttp.ClientPayloadError("the response is too long")
    return content
