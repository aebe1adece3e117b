"""Call Bot API methods by name: raw results, the port's errors, files in chunks.

python-telegram-bot makes the calls and retries nothing. Its error classes are not used: it reports every 404
as a bad token and does not keep which 5xx it received.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from telegram import Bot as LibraryBot
from telegram.error import NetworkError, TelegramError
from telegram.request import HTTPXRequest

from channels.errors import Ambiguous
from channels.message import SentMessage
from channels.telegram import payloads
from channels.telegram.errors import BotApiError, translate_error
from channels.telegram.settings import TelegramSettings
from egress.guard import EgressGuard
from egress.httpx_transport import GuardedTransport

TIMEOUT_SECONDS = 30.0
"""Seconds a response may take; a slower one raises Ambiguous."""

CONNECTIONS = 64


class _Request(HTTPXRequest):
    """python-telegram-bot's HTTP client with our error handling and streamed files."""

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        """Send the request; raises BotApiError unless it succeeds."""
        status, payload = await super().do_request(*args, **kwargs)
        if status != HTTPStatus.OK:
            raise BotApiError(status, _parse_object(payload))
        return status, payload

    @staticmethod
    def parse_json_payload(payload: bytes) -> Any:
        """Return the result; raises BotApiError if the payload has none."""
        answer = _parse_object(payload)
        if answer.get("ok") is not True or "result" not in answer:
            status = answer.get("error_code")
            raise BotApiError(status if isinstance(status, int) else 502, answer)
        return answer

    async def stream(self, url: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; raises TelegramError."""
        try:
            async with self._client.stream("GET", url, timeout=TIMEOUT_SECONDS) as response:
                _check_status(response.status_code)
                async for chunk in response.aiter_bytes():
                    yield chunk
        except TelegramError:
            raise
        except Exception as error:  # the library also wraps whatever httpx raises
            raise NetworkError(f"the download was interrupted: {type(error).__name__}") from error


def _check_status(status: int) -> None:
    if status != HTTPStatus.OK:
        raise BotApiError(status, {})


def _parse_object(payload: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(payload.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


class Api(LibraryBot):
    """The Bot API by method name, with raw results and the port's errors; its repr shows no token."""

    __slots__ = ("_files",)

    def __init__(self, settings: TelegramSettings, guard: EgressGuard) -> None:
        # A proxy from the environment would see the token.
        options = {"trust_env": False, "transport": GuardedTransport(guard, limit=CONNECTIONS)}
        request = _Request(connection_pool_size=CONNECTIONS, pool_timeout=10.0, httpx_kwargs=options)
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
        return await self._post(
            method,
            dict(parameters),
            read_timeout=timeout,
            write_timeout=TIMEOUT_SECONDS,
            connect_timeout=10.0,
        )

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
    for name in (
        "httpx",
        "httpx2",
        "httpcore",
        "telegram",
    ):  # at INFO httpx logs URLs, which contain the token
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))
    api = Api(settings, guard)
    try:
        yield api
    finally:
        await api.request.shutdown()


def parse_sent(method: str, result: object) -> SentMessage:
    """Return the message that a send created; raises Ambiguous if the response names none."""
    number = result.get("message_id") if isinstance(result, dict) else None
    if not isinstance(number, int):
        raise Ambiguous(f"{method}: the response names no message")
    return SentMessage(platform_id=str(number))
