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

import aiohttp

from channels.errors import Ambiguous, ChannelError, NotPermitted, Rejected, Unauthorized, Unreachable
from channels.slack.errors import not_found, rate_limited, translate_error
from channels.slack.payloads import Bot
from channels.slack.settings import SlackSettings
from egress.guard import EgressGuard
from egress.policy import refusal
from egress.sessions import open_session
from egress.urls import Origin, origin_of

REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
TRANSFER_TIMEOUT = aiohttp.ClientTimeout(total=300, sock_connect=10, sock_read=30)
FILES_SCOPE = "files:read"
MAX_RESPONSE_BYTES = 4_000_000
HTTPS_PORT = 443
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
        if not isinstance(url, str) or not url.lower().startswith(("ws://", "wss://")):
            raise Ambiguous("apps.connections.open: the response has no WebSocket URL")
        self._check_home(url)
        return url

    async def open_socket(self) -> aiohttp.ClientWebSocketResponse:
        """Return an open Socket Mode connection that the caller closes; raises ChannelError."""
        url = await self.socket_url()
        try:
            return await self._session.ws_connect(
                url, heartbeat=30.0, timeout=aiohttp.ClientWSTimeout(ws_close=0.5), max_msg_size=4_000_000
            )
        except _CONNECTION_ERRORS as error:
            raise Unreachable(f"socket: {_reason(error)}") from None  # the URL contains a ticket

    async def respond(self, url: str, notice: Mapping[str, Any]) -> bool:
        """Post to an interaction's response_url, which needs no token; return whether it was accepted."""
        self._check_home(url)
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
        self._check_home(url)
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
        self._check_home(url)
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

    def _check_home(self, url: str) -> None:
        """Raise Rejected unless a URL's scheme, host and port are Slack's or those of `base_url`.

        Any other server would receive the token, a ticket or a user's file.
        """
        try:
            given = origin_of(url)
        except ValueError:
            raise Rejected("URL: the host is not Slack's") from None
        if given != self._settings.base_url.origin and not _is_slack(given):
            raise Rejected("URL: the host is not Slack's")


def _is_slack(origin: Origin) -> bool:
    usual = origin.scheme == "https" and origin.port == HTTPS_PORT
    return usual and f".{origin.host}".endswith(SLACK_DOMAINS)


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
    return kind(f"{method}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return why a connection failed; the error's own text may contain a secret URL."""
    refused = refusal(error)
    return refused.why if refused else type(error).__name__


@asynccontextmanager
async def connect(settings: SlackSettings, guard: EgressGuard) -> AsyncIterator[Api]:
    """Yield the Web API and close it on exit; proxies from the environment would see the token."""
    # A pooled connection may be dead without our knowing; a send on it would be ambiguous.
    async with open_session(guard, limit=64, force_close=True) as session:
        yield Api(settings, session)
