"""Discord's REST API: calls of discord.py with the port's errors, and files of its CDN."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypeVar

import aiohttp
import discord
from discord.http import Route
from yarl import URL

from channels.discord.errors import translate_error
from channels.discord.payloads import Bot
from channels.discord.rest import (
    CHUNK_BYTES,
    CONNECT_TIMEOUT_SECONDS,
    TIMEOUT_SECONDS,
    FailedResponse,
    InteractionClient,
    RestClient,
)
from channels.discord.settings import DiscordSettings
from channels.errors import Ambiguous, RateLimited, Rejected
from channels.inbox.calls import connection_error
from egress.guard import EgressGuard
from egress.sessions import open_session
from egress.urls import Origin, origin_of

VERSION = "v10"
CDN_ORIGINS = frozenset(Origin("https", host, 443) for host in ("cdn.discordapp.com", "media.discordapp.net"))

_Result = TypeVar("_Result")


class Api:
    """The bot's calls (`bot`) and those that answer interactions; its repr shows no token."""

    def __init__(self, settings: DiscordSettings, http: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._http = http
        base = f"{settings.api_url}/{VERSION}"
        self.bot = RestClient(base, http, token=settings.token.get_secret_value())
        self.interactions = InteractionClient(base, http, token=None)

    def __repr__(self) -> str:
        return "Api(<token hidden>)"

    async def call(self, request: Awaitable[_Result], *, name: str, needs: str = "") -> _Result:
        """Return the result of a call; raises ChannelError. `name` appears in errors.

        `needs` is the permission that the call requires.
        """
        try:
            return await request
        except FailedResponse as failed:
            raise translate_error(
                failed.status, failed.headers, failed.body, name=name, needs=needs
            ) from None
        except discord.RateLimited as limited:
            raise RateLimited(limited.retry_after, scope="room") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error(name, error) from None
        except (ValueError, RecursionError):
            raise Ambiguous(f"{name}: the response is not JSON") from None

    async def fetch(self, url: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a CDN file; raises ChannelError, Rejected for any other URL."""
        if not self._is_discord_url(url):
            raise Rejected("download: the URL is not on Discord's file hosts")
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_SECONDS, sock_read=TIMEOUT_SECONDS
        )
        try:
            async with self._http.get(
                URL(url, encoded=True), timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != HTTPStatus.OK:
                    raise translate_error(response.status, response.headers, b"", name="download")
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error("download", error) from None

    def _is_discord_url(self, url: str) -> bool:
        """Return whether a URL has the origin of Discord's file hosts or of the configured URLs."""
        try:
            given = origin_of(url)
        except ValueError:
            return False
        return given in {self._settings.cdn_url.origin, self._settings.api_url.origin, *CDN_ORIGINS}

    async def identify(self) -> Bot:
        """Return the bot's own account; raises Unauthorized if the token is not valid."""
        me = await self.call(self.bot.request(Route("GET", "/users/@me")), name="users/@me")
        if not isinstance(me, dict) or not isinstance(me.get("id"), str):
            raise Ambiguous("users/@me: the response does not describe a bot")
        application = self._settings.application_id or me["id"]
        return Bot(id=me["id"], username=str(me.get("username") or ""), application_id=application)


@asynccontextmanager
async def connect(settings: DiscordSettings, guard: EgressGuard) -> AsyncIterator[Api]:
    """Yield the API and close it on exit; proxies from the environment are not used."""
    logger = logging.getLogger("discord")  # at DEBUG the library logs payloads and interaction tokens
    logger.setLevel(max(logger.level, logging.WARNING))
    async with open_session(guard) as http:
        yield Api(settings, http)
