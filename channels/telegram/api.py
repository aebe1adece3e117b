"""Call Bot API methods by name: raw results, the port's errors, files in chunks. Nothing is retried."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp

from channels.errors import Ambiguous
from channels.message import SentMessage
from channels.telegram import payloads
from channels.telegram.errors import BotApiError, TelegramError, translate_error
from channels.telegram.http_client import TIMEOUT_SECONDS, HttpClient
from channels.telegram.settings import TelegramSettings
from egress.guard import EgressGuard
from egress.sessions import open_session

CONNECTIONS = 64
KEEPALIVE_SECONDS = 5.0


class Api:
    """The Bot API by method name, with raw results and the port's errors."""

    __slots__ = ("_client", "_file_url", "_url")

    def __init__(self, settings: TelegramSettings, session: aiohttp.ClientSession) -> None:
        token = settings.token.get_secret_value()
        self._client = HttpClient(session)
        self._url = f"{settings.base_url}/bot{token}"
        self._file_url = f"{settings.file_url}/bot{token}"

    async def call(
        self, method: str, parameters: Mapping[str, Any], *, timeout: float = TIMEOUT_SECONDS
    ) -> Any:
        """Call a method and return its raw result; raises ChannelError. Follows a migrated room once."""
        try:
            try:
                return await self._call_once(method, parameters, timeout)
            except BotApiError as refusal:
                if refusal.migrated_to is None or "chat_id" not in parameters:
                    raise
                moved = {**parameters, "chat_id": refusal.migrated_to}
            return await self._call_once(method, moved, timeout)
        except TelegramError as error:
            raise translate_error(error, method=method) from error

    async def _call_once(self, method: str, parameters: Mapping[str, Any], timeout: float) -> Any:
        return await self._client.call(f"{self._url}/{method}", parameters, timeout=timeout)

    async def fetch(self, path: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a file that `getFile` named."""
        try:
            async for chunk in self._client.stream(f"{self._file_url}/{quote(path)}"):
                yield chunk
        except TelegramError as error:
            raise translate_error(error, method="download") from error

    async def identify(self) -> payloads.Bot:
        """Return the bot's own account; raises Unauthorized if the token is not valid."""
        me = await self.call("getMe", {})
        if not isinstance(me, dict) or "id" not in me:
            raise Ambiguous("getMe: the response does not describe a bot")
        return payloads.Bot(id=str(me["id"]), username=str(me.get("username") or ""))


@asynccontextmanager
async def connect(settings: TelegramSettings, guard: EgressGuard) -> AsyncIterator[Api]:
    """Yield the Bot API and close it on exit."""
    async with open_session(guard, limit=CONNECTIONS, keepalive_timeout=KEEPALIVE_SECONDS) as session:
        yield Api(settings, session)


def parse_sent(method: str, result: object) -> SentMessage:
    """Return the message that a send created; raises Ambiguous if the response names none."""
    number = result.get("message_id") if isinstance(result, dict) else None
    if not isinstance(number, int):
        raise Ambiguous(f"{method}: the response names no message")
    return SentMessage(platform_id=str(number))
