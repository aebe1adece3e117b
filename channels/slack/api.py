"""Call Web API methods by name, with the port's errors: one POST per call, no retries.

The client is aiohttp, not Slack's SDK: the SDK follows redirects (a second POST), reads responses of any
size, uses proxies from the environment, and closes a socket before it opens the next one.
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
    """Slack's Web API for one app; its repr shows no token."""

    def __init__(self, settings: SlackSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._session = session

    def __repr__(self) -> str:
        return "Api(<tokens hidden>)"

    async def call(self, method: str, parameters: Mapping[str, Any], *, as_app: bool = False) -> Any:
        """Call a method and return its response; raises ChannelError."""
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
        """Return the bot's own account; raises Unauthorized if the token is not valid."""
        return (await self.auth_test())[0]

    async def auth_test(self) -> tuple[Bot, frozenset[str] | None]:
        """Return the bot's account and its scopes (None if Slack's header does not list them)."""
        me, headers = await self._call("auth.test", {})
        if not isinstance(me.get("user_id"), str):
            raise Ambiguous("auth.test: the response does not describe a bot")
        team, bot_id = str(me.get("team_id") or ""), str(me.get("bot_id") or "")
        header = headers.get("x-oauth-scopes")
        scopes = None if header is None else frozenset(filter(None, map(str.strip, header[:8000].split(","))))
        return Bot(id=me["user_id"], bot_id=bot_id, team=team), scopes

    async def socket_url(self) -> str:
        """Return the URL for a Socket Mode connection; raises ChannelError."""
        answer = await self.call("apps.connections.open", {}, as_app=True)
        url = answer.get("url")
        if not isinstance(url, str) or urlsplit(url).scheme not in {"ws", "wss"}:
            raise Ambiguous("apps.connections.open: the response has no WebSocket URL")
        return url

    async def open_socket(self) -> aiohttp.ClientWebSocketResponse:
        """Return an open Socket Mode connection that the caller closes; raises ChannelError."""
        url = await self.socket_url()
        try:
            return await self._session.ws_connect(
                url, heartbeat=30.0, timeout=aiohttp.ClientWSTimeout(ws_close=0.5), max_msg_size=4_000_000
            )
        except _CONNECTION_ERRORS as error:
            raise Unreachable(f"socket: {type(error).__name__}") from None  # the URL contains a ticket

    async def respond(self, url: str, notice: Mapping[str, Any]) -> bool:
        """Post to an interaction's response_url, which needs no token; return whether it was accepted."""
        self._check_host(url)
        try:
            async with self._session.post(
                url, json=dict(notice), allow_redirects=False, timeout=REQUEST_TIMEOUT
            ) as response:
                payload = await _read(response)
        except _CONNECTION_ERRORS as error:
            raise _connection_error("response_url", error) from None  # the URL is a secret
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise _http_error("response_url", response)
        return response.status == HTTPStatus.OK and b'"ok":false' not in payload.replace(b" ", b"")

    async def upload(self, url: str, content: bytes) -> None:
        """Post a file's bytes to the URL that Slack gave; raises ChannelError."""
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
        """Yield a file's bytes; raises ChannelError. The token is sent to Slack's own hosts only."""
        self._check_host(url)
        headers = {"Authorization": f"Bearer {self._settings.bot_token.get_secret_value()}"}
        try:
            async with self._session.get(
                url, headers=headers, allow_redirects=False, timeout=TRANSFER_TIMEOUT
            ) as response:
                if response.status in {HTTPStatus.FOUND, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                    raise NotPermitted(
                        FILES_SCOPE,
                        f"download: Slack asks for a login: grant {FILES_SCOPE} and reinstall the app",
                    )
                if response.status != HTTPStatus.OK:
                    raise _http_error("download", response)
                async for chunk in response.content.iter_chunked(65536):
                    yield chunk
        except _CONNECTION_ERRORS as error:
            raise _connection_error("download", error) from error

    def _check_host(self, url: str) -> None:
        """Raise Rejected for a URL outside Slack, which would receive the token or a user's file."""
        configured, given = urlsplit(self._settings.base_url), _split_url(url)
        is_configured = given.scheme == configured.scheme and _is_same_host(
            given.hostname, configured.hostname
        )
        is_slack = given.scheme == "https" and f".{given.hostname}".endswith(SLACK_DOMAINS)
        if not (is_configured or is_slack) or given.username:
            raise Rejected("URL: the host is not Slack's")


def _is_same_host(host: str | None, configured: str | None) -> bool:
    """Return whether the hosts are equal; the names of loopback count as one host."""
    return host == configured or (host in LOOPBACK_HOSTS and configured in LOOPBACK_HOSTS)


def _split_url(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise Rejected("URL: the host is not Slack's") from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read a response of at most MAX_RESPONSE_BYTES."""
    parts: list[bytes] = []
    async for chunk in response.content.iter_chunked(65536):
        parts.append(chunk)
        if sum(map(len, parts)) > MAX_RESPONSE_BYTES:
            raise ValueError("the response is too long")
    return b"".join(parts)


def _body(method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Encode parameters: JSON for chat methods, which carry blocks; a form for all others."""
    if method.startswith("chat."):
        return {"json": dict(parameters)}
    return {"data": {name: _field(value) for name, value in parameters.items()}}


def _field(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parse_response(method: str, response: aiohttp.ClientResponse, payload: bytes) -> dict[str, Any]:
    """Return a successful response; raises ChannelError for any other."""
    if response.status != HTTPStatus.OK:
        raise _http_error(method, response)
    try:
        answer = json.loads(payload)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
        raise Ambiguous(f"{method}: the response is not Slack's")
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
    """Return Unreachable if no connection was made, Ambiguous if it broke."""
    before = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    kind = Unreachable if before or isinstance(error, aiohttp.InvalidURL) else Ambiguous
    return kind(f"{method}: {type(error).__name__}")


@asynccontextmanager
async def connect(settings: SlackSettings) -> AsyncIterator[Api]:
    """Yield the Web API and close it on exit; proxies from the environment would see the token."""
    # A pooled connection may be dead without our knowing; a send on it would be ambiguous.
    connector = aiohttp.TCPConnector(limit=64, force_close=True)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        yield Api(settings, session)
