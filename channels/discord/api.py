"""Discord's REST API: one call each, and the one table from its errors to ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from channels.discord.codec import Bot
from channels.discord.settings import DiscordSettings
from channels.errors import (
    Ambiguous,
    ChannelError,
    RateLimited,
    Rejected,
    Unauthorized,
    Undeliverable,
    Unreachable,
)

VERSION = "v10"
PATIENCE = 30.0
"""Seconds an answer may take; a longer one is ambiguous."""

CONNECT_PATIENCE = 10.0
USER_AGENT = "DiscordBot (https://github.com/dovecote/dovecote, 1)"
DEFAULT_WAIT = 5.0
CHUNK = 64 * 1024


class NotThere(Unreachable):
    """There is no such thing at this address, and Discord's words do not say what is missing."""


_BY_CODE: Mapping[int, type[ChannelError]] = {
    10003: Undeliverable,  # unknown channel
    10004: Undeliverable,  # unknown guild
    10008: Rejected,  # unknown message
    10015: Rejected,  # unknown webhook: an interaction's token that has ended
    10062: Rejected,  # unknown interaction
    40333: Unreachable,  # refused by the front servers
    50001: Undeliverable,  # missing access
    50007: Undeliverable,  # cannot send messages to this user
    50013: Undeliverable,  # missing permissions
    50027: Rejected,  # invalid webhook token
    50035: Rejected,  # invalid form body
    50083: Undeliverable,  # thread is archived
    160005: Undeliverable,  # thread is locked
}
_BY_STATUS: Mapping[int, type[ChannelError]] = {
    400: Rejected,
    401: Unauthorized,
    403: Undeliverable,
    404: NotThere,
    405: NotThere,
    413: Rejected,
}


def translate(status: int, headers: Mapping[str, str], body: bytes, *, name: str) -> ChannelError:
    """Return our error for an answer that says no; the only place that knows Discord's."""
    answer = parse_object(body)
    code = answer.get("code")
    code = code if isinstance(code, int) else 0
    detail = f"{name}: {describe(status, code, answer)}"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return _limited(headers, answer)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Ambiguous(detail)
    if code in _BY_CODE:
        return _BY_CODE[code](detail)
    if status == HTTPStatus.FORBIDDEN and not answer:
        return Unreachable(f"{detail} (not from Discord itself)")
    return _BY_STATUS.get(status, Unreachable)(detail)


def describe(status: int, code: int, answer: Mapping[str, Any]) -> str:
    """Return Discord's words for a refusal, short."""
    words = str(answer.get("message") or f"HTTP {status}")[:200]
    errors = answer.get("errors")
    found = f" {json.dumps(errors)[:300]}" if errors else ""
    return f"{words} ({code}){found}" if code else f"{words}{found}"


def _limited(headers: Mapping[str, str], answer: Mapping[str, Any]) -> RateLimited:
    """Without a JSON body it is the front servers that are tired of us, whatever the channel."""
    wait = _positive(answer.get("retry_after")) or _positive(headers.get("Retry-After")) or DEFAULT_WAIT
    everywhere = answer.get("global") is True or headers.get("X-RateLimit-Scope") == "global"
    return RateLimited(wait, scope="account" if everywhere or not answer else "room")


def _positive(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0
    return number if 0 < number < float("inf") else 0.0


def parse_object(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a body, or an empty one."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def path(*segments: str) -> str:
    """Return a path of segments, each of which stays one segment."""
    return "/".join(quote(segment, safe="@") for segment in segments)


class Api:
    """The REST API by path, with parsed answers and our errors. Its repr shows no token."""

    def __init__(self, settings: DiscordSettings, http: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._base = f"{settings.api_url}/{VERSION}"
        self.http = http

    def __repr__(self) -> str:
        return "Api(<token hidden>)"

    async def call(
        self,
        method: str,
        where: str,
        *,
        name: str,
        body: Mapping[str, Any] | None = None,
        form: aiohttp.FormData | None = None,
        query: str = "",
        as_bot: bool = True,
        patience: float = PATIENCE,
    ) -> Any:
        """Make one call and return its parsed answer; raises ChannelError. `name` stands in error texts."""
        url = URL(f"{self._base}/{where}{'?' if query else ''}{query}", encoded=True)
        token = self._settings.token.get_secret_value()
        headers = {"Authorization": f"Bot {token}"} if as_bot else {}
        timeout = aiohttp.ClientTimeout(total=patience, sock_connect=CONNECT_PATIENCE)
        await _notice_closed_connections()
        try:
            async with self.http.request(
                method,
                url,
                json=None if body is None else dict(body),
                data=form,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                status, content = response.status, await response.read()
                given = response.headers.copy()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _broken(error, name) from None
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise translate(status, given, content, name=name)
        return _parsed(content, name)

    async def fetch(self, url: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a file of the CDN; raises ChannelError, Rejected for any other address."""
        if not url.startswith(f"{self._settings.cdn_url}/"):
            raise Rejected("download: the file is not where Discord keeps files")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_PATIENCE, sock_read=PATIENCE)
        try:
            async with self.http.get(
                URL(url, encoded=True), timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != HTTPStatus.OK:
                    raise translate(response.status, response.headers, b"", name="download")
                async for chunk in response.content.iter_chunked(CHUNK):
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _broken(error, "download") from None

    async def identify(self) -> Bot:
        """Ask who we are; raises Unauthorized when the token is not good."""
        me = await self.call("GET", "users/@me", name="who am I")
        if not isinstance(me, dict) or not isinstance(me.get("id"), str):
            raise Ambiguous("who am I: the answer is not a bot's")
        application = self._settings.application_id or me["id"]
        return Bot(id=me["id"], username=str(me.get("username") or ""), application_id=application)


async def _notice_closed_connections() -> None:
    """Let the loop learn which kept connections the other side has closed: writing to one is ambiguous."""
    for _ in range(3):  # select, the end of the stream, the loss of the connection
        await asyncio.sleep(0)


def _broken(error: Exception, name: str) -> ChannelError:
    """Tell what came before the first byte of a request from what came after it."""
    before = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
    kind = Unreachable if isinstance(error, before) else Ambiguous
    return kind(f"{name}: {type(error).__name__}")


def _parsed(content: bytes, name: str) -> Any:
    if not content:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Ambiguous(f"{name}: the answer is no JSON") from None


@asynccontextmanager
async def connect(settings: DiscordSettings) -> AsyncIterator[Api]:
    """Yield the API, closed on exit. Proxies of the environment are not ours to read."""
    headers = {"User-Agent": USER_AGENT}
    async with aiohttp.ClientSession(
        headers=headers, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
    ) as http:
        yield Api(settings, http)
