"""The Web API by method name, with our errors: one POST a call, nothing repeated.

The client is aiohttp's, not Slack's own SDK: that follows redirects (a second POST), reads answers of any
size, takes proxies from the environment, and closes a socket before it opens the next one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp

from channels.errors import Ambiguous, ChannelError, NotPermitted, Rejected, Unauthorized, Unreachable
from channels.slack.errors import not_found, rate_limited, translate_error
from channels.slack.payloads import Bot
from channels.slack.settings import SlackSettings

REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
TRANSFER_TIMEOUT = aiohttp.ClientTimeout(total=300, sock_connect=10, sock_read=30)
FILES_SCOPE = "files:read"
MAX_RESPONSE_BYTES = 4_000_000
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
SLACK_DOMAINS = (".slack.com", ".slack-gov.com")
_CONNECTION_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class Api:
    """Slack's Web API for one app. Its repr shows no token."""

    def __init__(self, settings: SlackSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._session = session

    def __repr__(self) -> str:
        return "Api(<tokens hidden>)"

    async def call(self, method: str, parameters: Mapping[str, Any], *, as_app: bool = False) -> Any:
        """Call a method and return its answer; raises ChannelError."""
        return (await self._call(method, parameters, as_app=as_app))[0]

    async def _call(
        self, method: str, parameters: Mapping[str, Any], *, as_app: bool = False
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        token = self._settings.app_token if as_app else self._settings.bot_token
        headers = {"Authorization": f"Bearer {token.get_secret_value() if token else ''}"}
        url = self._settings.base_url + method
        try:
            async with self._session.post(
                url,
                headers=headers,
                allow_redirects=False,
                timeout=REQUEST_TIMEOUT,
                **_body(method, parameters),
            ) as response:
                payload = await _read(response)
                return _parse_response(method, response, payload), response.headers
        except _CONNECTION_ERRORS as error:
            raise _connection_error(method, error) from error

    async def identify(self) -> Bot:
        """Ask who we are; raises Unauthorized when the token is not good."""
        return (await self.auth_test())[0]

    async def auth_test(self) -> tuple[Bot, frozenset[str] | None]:
        """Ask who we are and which scopes we have, as Slack's header says (None: it says nothing)."""
        me, headers = await self._call("auth.test", {})
        if not isinstance(me.get("user_id"), str):
            raise Ambiguous("auth.test: the answer is not a bot's")
        team, bot_id = str(me.get("team_id") or ""), str(me.get("bot_id") or "")
        told = headers.get("x-oauth-scopes")
        scopes = None if told is None else frozenset(filter(None, map(str.strip, told[:8000].split(","))))
        return Bot(id=me["user_id"], bot_id=bot_id, team=team), scopes

    async def socket_url(self) -> str:
        """Ask where to connect for Socket Mode."""
        answer = await self.call("apps.connections.open", {}, as_app=True)
        url = answer.get("url")
        if not isinstance(url, str) or urlsplit(url).scheme not in {"ws", "wss"}:
            raise Ambiguous("apps.connections.open: the answer names no address")
        return url

    async def open_socket(self) -> aiohttp.ClientWebSocketResponse:
        """Return an open Socket Mode connection, for the caller to close; raises ChannelError."""
        url = await self.socket_url()
        try:
            return await self._session.ws_connect(
                url, heartbeat=30.0, timeout=aiohttp.ClientWSTimeout(ws_close=0.5), max_msg_size=4_000_000
            )
        except _CONNECTION_ERRORS as error:
            raise Unreachable(f"socket: {type(error).__name__}") from None  # the address holds a ticket

    async def respond(self, url: str, notice: Mapping[str, Any]) -> bool:
        """Post to an interaction's own address, which needs no token; say whether it was taken."""
        self._check_host(url)
        try:
            async with self._session.post(
                url, json=dict(notice), allow_redirects=False, timeout=REQUEST_TIMEOUT
            ) as response:
                payload = await _read(response)
        except _CONNECTION_ERRORS as error:
            raise _connection_error("response_url", error) from None  # the address is a secret
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise _http_error("response_url", response)
        return response.status == HTTPStatus.OK and b'"ok":false' not in payload.replace(b" ", b"")

    async def upload(self, url: str, content: bytes) -> None:
        """Post a file's bytes where Slack said; raises ChannelError."""
        self._check_host(url)
        try:
            async with self._session.post(
                url, data=content, allow_redirects=False, timeout=TRANSFER_TIMEOUT
            ) as response:
                await _read(response)
                if response.status != HTTPStatus.OK:
                    raise _http_error("upload", response)
        except _CONNECTION_ERRORS as error:
            raise _connection_error("upload", error) from error

    async def fetch(self, url: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; the token goes to Slack's own hosts only."""
        self._check_host(url)
        headers = {"Authorization": f"Bearer {self._settings.bot_token.get_secret_value()}"}
        try:
            async with self._session.get(
                url, headers=headers, allow_redirects=False, timeout=TRANSFER_TIMEOUT
            ) as response:
                if response.status in {HTTPStatus.FOUND, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                    raise NotPermitted(
                        FILES_SCOPE, f"download: Slack wants a login: grant {FILES_SCOPE}, install again"
                    )
                if response.status != HTTPStatus.OK:
                    raise _http_error("download", response)
                async for chunk in response.content.iter_chunked(65536):
                    yield chunk
        except _CONNECTION_ERRORS as error:
            raise _connection_error("download", error) from error

    def _check_host(self, url: str) -> None:
        """Refuse an address that is not Slack's: it would be told the token or a person's file."""
        home, there = urlsplit(self._settings.base_url), _split_url(url)
        at_home = there.scheme == home.scheme and _is_same_host(there.hostname, home.hostname)
        at_slack = there.scheme == "https" and f".{there.hostname}".endswith(SLACK_DOMAINS)
        if not (at_home or at_slack) or there.username:
            raise Rejected("address: not at Slack's host")


def _is_same_host(host: str | None, configured: str | None) -> bool:
    """This machine has several names: a stand-in may know itself by another one."""
    return host == configured or (host in LOOPBACK_HOSTS and configured in LOOPBACK_HOSTS)


def _split_url(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise Rejected("address: not at Slack's host") from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read an answer, and no more than an answer can have."""
    parts: list[bytes] = []
    async for chunk in response.content.iter_chunked(65536):
        parts.append(chunk)
        if sum(map(len, parts)) > MAX_RESPONSE_BYTES:
            raise ValueError("an endless answer")
    return b"".join(parts)


def _body(method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Give chat methods JSON, which carries blocks; the others forms, which all of them take."""
    if method.startswith("chat."):
        return {"json": dict(parameters)}
    return {"data": {name: _field(value) for name, value in parameters.items()}}


def _field(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parse_response(method: str, response: aiohttp.ClientResponse, payload: bytes) -> dict[str, Any]:
    """Return a successful answer; raises ChannelError for every other."""
    if response.status != HTTPStatus.OK:
        raise _http_error(method, response)
    try:
        answer = json.loads(payload)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
        raise Ambiguous(f"{method}: the answer is not Slack's")
    if not answer["ok"]:
        needed = str(answer.get("needed") or "")
        raise translate_error(
            str(answer.get("error")), method=method, retry_after=_retry_after(response), needed=needed
        )
    return answer


def _http_error(method: str, response: aiohttp.ClientResponse) -> ChannelError:
    if response.status == HTTPStatus.TOO_MANY_REQUESTS:
        return rate_limited(method, _retry_after(response))
    if response.status == HTTPStatus.NOT_FOUND:
        return not_found(method)
    detail = f"{method}: HTTP {response.status}"
    if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Ambiguous(detail)
    if response.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return Unauthorized(detail)
    return Rejected(detail) if response.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else Unreachable(detail)


def _retry_after(response: aiohttp.ClientResponse) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() and int(text[:9]) > 0 else 30.0


def _connection_error(method: str, error: Exception) -> ChannelError:
    """Tell a connection that was never made from one that broke."""
    before = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    kind = Unreachable if before or isinstance(error, aiohttp.InvalidURL) else Ambiguous
    return kind(f"{method}: {type(error).__name__}")


@asynccontextmanager
async def connect(settings: SlackSettings) -> AsyncIterator[Api]:
    """Yield the Web API, closed on exit; proxies of the environment would see the token and are not used."""
    # A kept connection may have died unnoticed: what is sent on it then is ambiguous without need.
    connector = aiohttp.TCPConnector(limit=64, force_close=True)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        yield Api(settings, session)
