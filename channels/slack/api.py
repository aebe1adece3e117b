"""Slack's Web API for one bot: the SDK's client over a guarded session, with the port's errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, cast

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse
from slack_sdk.webhook.async_client import AsyncWebhookClient

from channels.errors import Ambiguous, NotPermitted, Rejected, Unreachable
from channels.inbox.calls import CONNECTION_ERRORS, connection_error, read_bounded
from channels.slack.errors import translate_error
from channels.slack.payloads import Bot
from channels.slack.session import MAX_RESPONSE_BYTES, SDK_LOG, GuardedSession, http_error, retry_after
from channels.slack.settings import SlackSettings
from egress.guard import EgressGuard
from egress.sessions import open_session
from egress.urls import Origin, origin_of

TRANSFER_TIMEOUT = aiohttp.ClientTimeout(total=300, sock_connect=10, sock_read=30)
FILES_SCOPE = "files:read"
HTTPS_PORT = 443
SLACK_DOMAINS = (".slack.com", ".slack-gov.com")


class SlackWebClient(AsyncWebClient):
    """The SDK's client, which authenticates an app in a way that aiohttp has not deprecated."""

    async def api_call(
        self, api_method: str, *, auth: Any = None, headers: dict[str, str] | None = None, **given: Any
    ) -> AsyncSlackResponse:
        """Call a method; `auth` is the id and secret of an app."""
        if auth is not None:
            encoded = aiohttp.encode_basic_auth(auth["client_id"], auth["client_secret"])
            headers = {**(headers or {}), "Authorization": encoded}
        return await super().api_call(api_method, headers=headers, **given)


class Api:
    """Slack's Web API with one bot's token; its repr shows no token."""

    def __init__(self, settings: SlackSettings, session: aiohttp.ClientSession, token: str) -> None:
        self.settings = settings
        self._session = session
        self.token = token
        self._sdk_session = cast("aiohttp.ClientSession", GuardedSession(session, settings.base_url))
        self.web = self.client(token)

    def __repr__(self) -> str:
        return "Api(<tokens hidden>)"

    def with_token(self, token: str) -> Api:
        """Return the same Web API with another bot's token."""
        return Api(self.settings, self._session, token)

    def client(self, token: str | None) -> AsyncWebClient:
        """Return the SDK's client with a token: no retries, no proxy, the guarded session."""
        client = SlackWebClient(
            token,
            base_url=self.settings.base_url,
            session=self._sdk_session,
            retry_handlers=[],
            logger=SDK_LOG,
        )
        client.proxy = None  # the SDK reads one from the environment
        return client

    async def call(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Call a method and return its response; raises ChannelError."""
        return (await answer_of(self.web.api_call(method, **_body(method, parameters))))[0]

    async def identify(self) -> Bot:
        """Return the bot's own account; raises Unauthorized if the token is not valid."""
        return (await self.auth_test())[0]

    async def auth_test(self) -> tuple[Bot, frozenset[str] | None]:
        """Return the bot's account and its scopes (None if Slack's header does not list them)."""
        me, headers = await answer_of(self.web.auth_test())
        if not isinstance(me.get("user_id"), str):
            raise Ambiguous("auth.test: the response does not describe a bot")
        team, bot_id = str(me.get("team_id") or ""), str(me.get("bot_id") or "")
        enterprise = str(me.get("enterprise_id") or "")
        header = headers.get("x-oauth-scopes")
        scopes = None if header is None else frozenset(filter(None, map(str.strip, header[:8000].split(","))))
        is_org_wide = me.get("is_enterprise_install") is True
        bot = Bot(id=me["user_id"], bot_id=bot_id, team=team, enterprise=enterprise, is_org_wide=is_org_wide)
        return bot, scopes

    async def socket_url(self) -> str:
        """Return the URL for a Socket Mode connection; raises ChannelError."""
        token = self.settings.app_token
        secret = token.get_secret_value() if token else ""
        answer, _ = await answer_of(self.web.apps_connections_open(app_token=secret))
        url = answer.get("url")
        if not isinstance(url, str) or not url.lower().startswith(("ws://", "wss://")):
            raise Ambiguous("apps.connections.open: the response has no WebSocket URL")
        self._check_home(url)
        return url

    async def open_socket(self, url: str, *, heartbeat: float) -> aiohttp.ClientWebSocketResponse:
        """Return an open Socket Mode connection that the caller closes; raises ChannelError."""
        try:
            return await self._session.ws_connect(
                url,
                autoping=False,
                heartbeat=heartbeat,
                timeout=aiohttp.ClientWSTimeout(ws_close=0.5),
                max_msg_size=4_000_000,
            )
        except CONNECTION_ERRORS as error:
            raise Unreachable(str(connection_error("socket", error))) from None  # the URL contains a ticket

    async def respond(self, url: str, notice: Mapping[str, Any]) -> bool:
        """Post to an interaction's response_url, which needs no token; return whether it was accepted."""
        self._check_home(url)
        poster = AsyncWebhookClient(url, session=self._sdk_session, retry_handlers=[], logger=SDK_LOG)
        answer = await poster.send_dict(dict(notice))
        return '"ok":false' not in str(answer.body).replace(" ", "")

    async def upload(self, url: str, content: bytes) -> None:
        """Post a file's bytes to the URL that Slack gave; raises ChannelError."""
        self._check_home(url)
        try:
            async with self._session.post(
                url, data=content, allow_redirects=False, timeout=TRANSFER_TIMEOUT
            ) as response:
                await read_bounded(response, MAX_RESPONSE_BYTES)
        except CONNECTION_ERRORS as error:
            raise connection_error("upload", error) from error
        if response.status == HTTPStatus.FORBIDDEN:
            raise Unreachable("upload: HTTP 403")  # of this URL, which the next attempt replaces
        if response.status != HTTPStatus.OK:
            raise http_error("upload", response)

    async def fetch(self, url: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; raises ChannelError. The token is sent to Slack's own hosts only."""
        self._check_home(url)
        headers = {"Authorization": f"Bearer {self.token}"}
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
                    raise http_error("download", response)
                async for chunk in response.content.iter_chunked(65536):
                    yield chunk
        except CONNECTION_ERRORS as error:
            raise connection_error("download", error) from error

    def _check_home(self, url: str) -> None:
        """Raise Rejected unless a URL's scheme, host and port are Slack's or those of `base_url`.

        Any other server would receive the token, a ticket or a user's file.
        """
        try:
            given = origin_of(url)
        except ValueError:
            raise Rejected("URL: the host is not Slack's") from None
        if given != self.settings.base_url.origin and not _is_slack(given):
            raise Rejected("URL: the host is not Slack's")


def _is_slack(origin: Origin) -> bool:
    usual = origin.scheme == "https" and origin.port == HTTPS_PORT
    return usual and f".{origin.host}".endswith(SLACK_DOMAINS)


async def answer_of(call: Awaitable[AsyncSlackResponse]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the response and headers of a call of the SDK; raises ChannelError."""
    try:
        answer = await call
    except SlackApiError as error:
        refused = cast("AsyncSlackResponse", error.response)
        method = str(refused.api_url).rpartition("/")[2]
        needed, code = str(refused.get("needed") or ""), str(refused.get("error"))
        seconds = retry_after(refused.headers)
        raise translate_error(code, method=method, retry_after=seconds, needed=needed) from error
    return cast("dict[str, Any]", answer.data), answer.headers


def _body(method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Encode parameters: JSON for chat methods, which carry blocks; a form for all others."""
    if method.startswith("chat."):
        return {"json": dict(parameters)}
    fields = {name: one if isinstance(one, str) else json.dumps(one) for name, one in parameters.items()}
    return {"data": fields}


@asynccontextmanager
async def connect(settings: SlackSettings, guard: EgressGuard) -> AsyncIterator[Api]:
    """Yield the Web API and close it on exit; proxies from the environment would see the token."""
    # A pooled connection may be dead without our knowing; a send on it would be ambiguous.
    async with open_session(guard, limit=64, force_close=True) as session:
        yield Api(settings, session, settings.bot_token.get_secret_value() if settings.bot_token else "")
