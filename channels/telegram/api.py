"""Call Bot API methods by name: raw results, the port's errors, files in chunks.

python-telegram-bot makes the calls through `http_client.py` and retries nothing. Its error classes are not
used: it reports every 404 as a bad token and does not keep which 5xx it received.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp

from channels.errors import Ambiguous
from channels.message import SentMessage
from channels.telegram import payloads
from channels.telegram.errors import BotApiError, translate_error
from channels.telegram.http_client import TIMEOUT_SECONDS, HttpClient
from channels.telegram.library import LibraryBot, TelegramError
from channels.telegram.settings import TelegramSettings
from egress.guard import EgressGuard
from egress.sessions import open_session

CONNECTIONS = 64
KEEPALIVE_SECONDS = 5.0


class Api(LibraryBot):
    """The Bot API by method name, with raw results and the port's errors; its repr shows no token."""

    __slots__ = ("_files",)

    def __init__(self, settings: TelegramSettings, session: aiohttp.ClientSession) -> None:
        request = HttpClient(session)
        super().__init__(
            settings.token.get_secret_value(),
            base_url=f"{settings.base_url}/bot",
            base_file_url=f"{settings.file_url}/bot",
            request=request,
            get_updates_request=request,
        )
        self._files = request

    def __repr__(self) -> str:
        return "Api(<token hidden>)"

    async def call(
        self, method: str, parameters: Mapping[str, Any], *, timeout: float = TIMEOUT_SECONDS
    ) -> Any:
        """Call a method and return its raw result; raises ChannelError.

        Follows a migrated room once, with what is about no message: in a supergroup these have new numbers.
        """
        try:
            try:
                return await self._call_once(method, parameters, timeout)
            except BotApiError as refusal:
                if refusal.migrated_to is None or "chat_id" not in parameters or "message_id" in parameters:
                    raise
                moved = {**parameters, "chat_id": refusal.migrated_to}
                moved.pop("reply_parameters", None)
            return await self._call_once(method, moved, timeout)
        except TelegramError as error:
            raise translate_error(error, method=method) from error

    async def _call_once(self, method: str, parameters: Mapping[str, Any], timeout: float) -> Any:
        return await self._post(method, dict(parameters), read_timeout=timeout)

    async def fetch(self, path: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a file that `getFile` named."""
        try:
            async for chunk in self._files.stream(f"{self.base_file_url}/{quote(path)}"):
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
    logger = logging.getLogger("telegram")
    logger.setLevel(max(logger.level, logging.WARNING))  # at DEBUG it logs every message
    async with open_session(guard, limit=CONNECTIONS, keepalive_timeout=KEEPALIVE_SECONDS) as session:
        yield Api(settings, session)


def parse_sent(method: str, result: object) -> SentMessage:
    """Return the message that a send created; raises Ambiguous if the response names none."""
    number = result.get("message_id") if isinstance(result, dict) else None
    if not isinstance(number, int):
        raise Ambiguous(f"{method}: the response names no message")
    return SentMessage(platform_id=str(number))
