"""Call Discord's REST API once per call, within the announced rate limits; never wait or retry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from channels.discord.errors import translate_error
from channels.discord.payloads import Bot
from channels.discord.rate_limit_buckets import RateLimitBuckets, route_of
from channels.discord.settings import DiscordSettings
from channels.errors import Ambiguous, ChannelError, Rejected, Unreachable
from egress.guard import EgressGuard
from egress.policy import refusal
from egress.sessions import open_session
from egress.urls import Origin, origin_of

VERSION = "v10"
TIMEOUT_SECONDS = 30.0
"""Seconds a response may take; a slower one raises Ambiguous."""

CALLBACK_TIMEOUT_SECONDS = 3.0
"""Seconds in which Discord expects the initial response to an interaction."""

CONNECT_TIMEOUT_SECONDS = 10.0
USER_AGENT = "DiscordBot (https://github.com/dovecote/dovecote, 1)"
CHUNK_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
CDN_ORIGINS = frozenset(Origin("https", host, 443) for host in ("cdn.discordapp.com", "media.discordapp.net"))


def path(*segments: str) -> str:
    """Return a path of segments, each escaped so that it stays one segment."""
    return "/".join(quote(segment, safe="@") for segment in segments)


class Api:
    """The REST API by path, with parsed responses and the port's errors; its repr shows no token."""

    def __init__(self, settings: DiscordSettings, http: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._base = f"{settings.api_url}/{VERSION}"
        self._buckets = RateLimitBuckets()
        self.http = http

    def __repr__(self) -> str:
        return "Api(<token hidden>)"

    async def call(
        self,
        method: str,
        where: str,
        *,
        name: str,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        form: aiohttp.FormData | None = None,
        query: str = "",
        as_bot: bool = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
        needs: str = "",
    ) -> Any:
        """Make one call and return its parsed response; raises ChannelError. `name` appears in errors.

        `needs` is the permission that the call requires; `body` may be an object or a list.
        """
        route = route_of(method, where)
        self._buckets.check(route)
        url = URL(f"{self._base}/{where}{'?' if query else ''}{query}", encoded=True)
        token = self._settings.token.get_secret_value()
        headers = {"Authorization": f"Bot {token}"} if as_bot else {}
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_TIMEOUT_SECONDS)
        await _detect_closed_connections()
        try:
            async with self.http.request(
                method,
                url,
                json=body,
                data=form,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                status, content = response.status, await _read(response)
                given = response.headers.copy()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _connection_error(error, name) from None
        self._buckets.update(route, given)
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise translate_error(status, given, content, name=name, needs=needs)
        return _parse_json(content, name)

    async def fetch(self, url: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a CDN file; raises ChannelError, Rejected for any other URL."""
        if not self._is_discord_url(url):
            raise Rejected("download: the URL is not on Discord's file hosts")
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_SECONDS, sock_read=TIMEOUT_SECONDS
        )
        try:
            async with self.http.get(
                URL(url, encoded=True), timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != HTTPStatus.OK:
                    raise translate_error(response.status, response.headers, b"", name="download")
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _connection_error(error, "download") from None

    def _is_discord_url(self, url: str) -> bool:
        """Return whether a URL has the origin of Discord's file hosts or of the configured URLs."""
        try:
            given = origin_of(url)
        except ValueError:
            return False
        return given in {self._settings.cdn_url.origin, self._settings.api_url.origin, *CDN_ORIGINS}

    async def identify(self) -> Bot:
        """Return the bot's own account; raises Unauthorized if the token is not valid."""
        me = await self.call("GET", "users/@me", name="users/@me")
        if not isinstance(me, dict) or not isinstance(me.get("id"), str):
            raise Ambiguous("users/@me: the response does not describe a bot")
        application = self._settings.application_id or me["id"]
        return Bot(id=me["id"], username=str(me.get("username") or ""), application_id=application)


async def _detect_closed_connections() -> None:
    """Let the event loop notice pooled connections that were closed; a write there is ambiguous."""
    for _ in range(3):  # one round each: select, end of stream, connection lost
        await asyncio.sleep(0)


def _connection_error(error: Exception, name: str) -> ChannelError:
    """Return Unreachable if no byte of the request was sent, else Ambiguous."""
    before = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
    kind = Unreachable if isinstance(error, before) else Ambiguous
    refused = refusal(error)
    return kind(f"{name}: {refused.why if refused else type(error).__name__}")


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read a response of at most MAX_RESPONSE_BYTES."""
    content = await response.content.read(MAX_RESPONSE_BYTES + 1)
    while len(content) <= MAX_RESPONSE_BYTES and (more := await response.content.read(CHUNK_BYTES)):
        content += more
    if len(content) > MAX_RESPONSE_BYTES:
        raise aiohttp.ClientPayloadError("the response is too long")
    return content


def _parse_json(content: bytes, name: str) -> Any:
    if not content:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Ambiguous(f"{name}: the response is not JSON") from None


@asynccontextmanager
async def connect(settings: DiscordSettings, guard: EgressGuard) -> AsyncIterator[Api]:
    """Yield the API and close it on exit; proxies from the environment are not used."""
    headers = {"User-Agent": USER_AGENT}
    async with open_session(guard, headers=headers) as http:
        yield Api(settings, http)
