"""Speak at Telegram: messages, edits, files, and the one table from its errors to ours.

python-telegram-bot carries the calls and gives the raw results; it retries nothing. Its own classification
of errors is not used: it takes every 404 for a bad token and forgets which 5xx it saw.
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
from telegram import InputFile
from telegram.error import NetworkError, TelegramError
from telegram.request import HTTPXRequest

from channels.errors import (
    Ambiguous,
    ChannelError,
    Conflict,
    RateLimited,
    Rejected,
    Unauthorized,
    Undeliverable,
    Unreachable,
)
from channels.message import Address, Command, File, Press, Reply, Sent
from channels.port import Channel, Finding
from channels.telegram import codec, markup
from channels.telegram.settings import TelegramSettings

TEXT_LIMIT = 4096
UPLOAD_LIMIT = 50_000_000
PHOTO_LIMIT = 10_000_000
DOWNLOAD_LIMIT = 20_000_000
CALLBACK_TEXT_LIMIT = 200
PATIENCE = 30.0
"""Seconds an answer may take; a longer one is ambiguous."""

_PHOTOS = {"image/jpeg", "image/png", "image/webp"}
_BY_STATUS: dict[int, type[ChannelError]] = {
    400: Rejected,
    401: Unauthorized,
    403: Undeliverable,
    404: Unreachable,
    409: Conflict,
    413: Rejected,
}
_DEAD_CHAT = (
    "chat not found",
    "user not found",
    "peer_id_invalid",
    "deactivated",
    "not enough rights",
    "have no rights",
    "chat_write_forbidden",
    "need administrator rights",
    "message thread not found",
    "topic_deleted",
    "topic_closed",
    "bot is not a member",
)
"""What a 400 says when it is the chat, not the content, that does not take the message."""

_MARKUP_REFUSED = ("parse entities", "entity", "entities")
_NEVER_SENT = {
    "ConnectError",
    "ConnectTimeout",
    "PoolTimeout",
    "ProxyError",
    "UnsupportedProtocol",
    "InvalidURL",
}
"""httpx's errors that come before the first byte of a request."""


class Refusal(TelegramError):
    """Telegram answered, and the answer is no."""

    __slots__ = ("description", "migrated_to", "retry_after", "status")

    def __init__(self, status: int, answer: Mapping[str, Any]) -> None:
        self.description = str(answer.get("description") or f"HTTP {status}")
        super().__init__(self.description)
        parameters = answer.get("parameters")
        parameters = parameters if isinstance(parameters, dict) else {}
        self.status = status
        self.migrated_to: object = parameters.get("migrate_to_chat_id")
        wait = parameters.get("retry_after")
        self.retry_after = float(wait) if isinstance(wait, int | float) and wait > 0 else 5.0


def translate(error: Exception, *, method: str) -> ChannelError:
    """Return our error for one that came out of a call; the only place that knows Telegram's."""
    if not isinstance(error, Refusal):
        before = type(error.__cause__).__name__ in _NEVER_SENT
        kind = Unreachable if before else Ambiguous
        return kind(f"{method}: {type(error.__cause__ or error).__name__}")
    detail = f"{method}: {error.description}"
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return RateLimited(error.retry_after)
    if error.status == HTTPStatus.NOT_FOUND and method == "getMe":
        return Unauthorized(f"{detail} (is the token complete, and base_url right?)")
    if error.status == HTTPStatus.BAD_REQUEST and any(words in detail.lower() for words in _DEAD_CHAT):
        return Undeliverable(detail)
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Ambiguous(detail)
    return _BY_STATUS.get(error.status, Unreachable)(detail)


class _Request(HTTPXRequest):
    """python-telegram-bot's HTTP client, with answers judged by us and files streamed."""

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        """Send the request; raises Refusal for everything but success."""
        status, payload = await super().do_request(*args, **kwargs)
        if status != HTTPStatus.OK:
            raise Refusal(status, _as_object(payload))
        return status, payload

    @staticmethod
    def parse_json_payload(payload: bytes) -> Any:
        """Return the answer; raises Refusal for one that is none."""
        answer = _as_object(payload)
        if answer.get("ok") is not True or "result" not in answer:
            status = answer.get("error_code")
            raise Refusal(status if isinstance(status, int) else 502, answer)
        return answer

    async def stream(self, url: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; raises TelegramError."""
        try:
            async with self._client.stream("GET", url, timeout=PATIENCE) as response:
                _check_status(response.status_code)
                async for chunk in response.aiter_bytes():
                    yield chunk
        except TelegramError:
            raise
        except Exception as error:  # as the library does for its calls: httpx is its own affair
            raise NetworkError(f"the download broke off: {type(error).__name__}") from error


def _check_status(status: int) -> None:
    if status != HTTPStatus.OK:
        raise Refusal(status, {})


def _as_object(payload: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(payload.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


class Api(LibraryBot):
    """The Bot API by method name, with raw results and our errors. Its repr shows no token."""

    __slots__ = ("_files",)

    def __init__(self, settings: TelegramSettings) -> None:
        # Proxies of the environment are not ours to read, and would see the token.
        request = _Request(connection_pool_size=64, pool_timeout=10.0, httpx_kwargs={"trust_env": False})
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

    async def call(self, method: str, parameters: Mapping[str, Any], *, patience: float = PATIENCE) -> Any:
        """Call a method and return its raw result; a room that has moved is followed once."""
        try:
            try:
                return await self._once(method, parameters, patience)
            except Refusal as refusal:
                if refusal.migrated_to is None or "chat_id" not in parameters:
                    raise
                moved = {**parameters, "chat_id": refusal.migrated_to}
            return await self._once(method, moved, patience)
        except TelegramError as error:
            raise translate(error, method=method) from error

    async def _once(self, method: str, parameters: Mapping[str, Any], patience: float) -> Any:
        return await self._post(
            method, dict(parameters), read_timeout=patience, write_timeout=PATIENCE, connect_timeout=10.0
        )

    async def fetch(self, path: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a file that `getFile` named."""
        try:
            async for chunk in self._files.stream(f"{self.base_file_url}/{quote(path)}"):
                yield chunk
        except TelegramError as error:
            raise translate(error, method="download") from error

    async def identify(self) -> codec.Bot:
        """Ask who we are; raises Unauthorized when the token is not good."""
        me = await self.call("getMe", {})
        if not isinstance(me, dict) or "id" not in me:
            raise Ambiguous("getMe: the answer is not a bot's")
        return codec.Bot(id=str(me["id"]), username=str(me.get("username") or ""))


@asynccontextmanager
async def connect(settings: TelegramSettings) -> AsyncIterator[Api]:
    """Yield the Bot API, closed on exit."""
    for name in (
        "httpx",
        "httpx2",
        "httpcore",
        "telegram",
    ):  # at INFO httpx logs addresses, which hold the token
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))
    api = Api(settings)
    try:
        yield api
    finally:
        await api.request.shutdown()


class TelegramChannel(Channel):
    """The sending half of a Telegram bot."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def send(self, address: Address, reply: Reply) -> Sent:
        """Send one message, as plain text when Telegram refuses our entities."""
        place = {**codec.target(address), **codec.reply_parameters(reply), **codec.keyboard(reply.buttons)}
        return _sent("sendMessage", await self._say("sendMessage", place, reply))

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> Sent:
        """Make a message of ours say something else; Telegram's complaint that it does already is success."""
        place = {"chat_id": address.room, "message_id": platform_id, **codec.keyboard(reply.buttons)}
        try:
            await self._say("editMessageText", place, reply)
        except Rejected as error:
            if "message is not modified" not in str(error):
                raise
        return Sent(platform_id=platform_id)

    async def typing(self, address: Address) -> None:
        """Show "typing" for about five seconds."""
        await self._api.call("sendChatAction", {**codec.target(address), "action": "typing"})

    async def upload(self, address: Address, file: File, *, key: str) -> Sent:  # noqa: ARG002 - Telegram knows no idempotency key
        """Send a picture as a photo where Telegram takes it as one, everything else as a document."""
        if len(file.content) > UPLOAD_LIMIT:
            raise Rejected(f"{file.name} has {len(file.content)} bytes, Telegram takes {UPLOAD_LIMIT}")
        if file.media_type in _PHOTOS and len(file.content) <= PHOTO_LIMIT:
            try:
                return await self._upload("sendPhoto", "photo", address, file)
            except Rejected as error:  # a picture too wide or too long is still a document
                if not any(words in str(error).upper() for words in ("PHOTO", "IMAGE")):
                    raise
        return await self._upload("sendDocument", "document", address, file)

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes, 20 MB at the most."""
        described = await self._api.call("getFile", {"file_id": ref})
        path = described.get("file_path") if isinstance(described, dict) else None
        if not isinstance(path, str) or "://" in path or ".." in path.split("/"):
            raise Rejected("getFile: the answer names no file")
        size = 0
        async for chunk in self._api.fetch(path.lstrip("/")):
            size += len(chunk)
            if size > DOWNLOAD_LIMIT:
                raise Rejected(f"the file has more than {DOWNLOAD_LIMIT} bytes")
            yield chunk

    async def answer(self, to: Press | Command, text: str) -> None:
        """Show a short notice to the person who pressed."""
        notice = codec.encodable(text)[:CALLBACK_TEXT_LIMIT]
        await self._api.call("answerCallbackQuery", {"callback_query_id": to.token, "text": notice})

    async def _say(self, method: str, place: Mapping[str, Any], reply: Reply) -> Any:
        wording = _worded(reply.text)
        try:
            return await self._api.call(method, {**place, **wording})
        except Rejected as error:
            if "entities" not in wording or not any(words in str(error).lower() for words in _MARKUP_REFUSED):
                raise
        return await self._api.call(method, {**place, **codec.wording(reply.text)})

    async def _upload(self, method: str, field: str, address: Address, file: File) -> Sent:
        content = InputFile(file.content, filename=file.name)
        caption = {"caption": codec.encodable(file.caption)} if file.caption else {}
        result = await self._api.call(method, {**codec.target(address), **caption, field: content})
        return _sent(method, result)


def _worded(text: str) -> dict[str, Any]:
    """Render the text; one that does not fit with its rendering is sent as it is."""
    if len(text) > TEXT_LIMIT:
        return codec.wording(text)
    rendered = markup.render(text)
    if codec.measure(rendered.text) > TEXT_LIMIT:
        return codec.wording(text)
    return codec.wording(rendered.text, tuple(markup.dump(entity) for entity in rendered.entities))


def _sent(method: str, result: object) -> Sent:
    number = result.get("message_id") if isinstance(result, dict) else None
    if not isinstance(number, int):
        raise Ambiguous(f"{method}: the answer names no message")
    return Sent(platform_id=str(number))


async def probe(settings: TelegramSettings) -> tuple[Finding, ...]:
    """Ask Telegram who the bot is, what it may read, and how updates are set to come in."""
    async with connect(settings) as api:
        try:
            me = await api.call("getMe", {})
            webhook = await api.call("getWebhookInfo", {})
        except ChannelError as error:
            return (Finding(subject="telegram", ok=False, detail=str(error), remedy=_REMEDIES[error.remedy]),)
    return (_identity(me), _privacy(me, settings), _reception(webhook, settings))


_REMEDIES = {
    "retry": "See whether base_url can be reached from here, then try again.",
    "give_up": "See the message of Telegram.",
    "operator": "Take the token from @BotFather again.",
}


def _identity(me: Mapping[str, Any]) -> Finding:
    return Finding(subject="bot", ok=True, detail=f"@{me.get('username')} ({me.get('id')})")


def _privacy(me: Mapping[str, Any], settings: TelegramSettings) -> Finding:
    reads_all = me.get("can_read_all_group_messages") is True
    return Finding(
        subject="group messages",
        ok=reads_all or settings.groups != "always",
        detail="all are delivered"
        if reads_all
        else "commands, mentions and replies are delivered (privacy mode)",
        remedy="" if reads_all else "To read all: @BotFather, /setprivacy, Disable; then add the bot again.",
    )


def _reception(webhook: Mapping[str, Any], settings: TelegramSettings) -> Finding:
    url, failure = webhook.get("url"), webhook.get("last_error_message")
    if settings.mode == "webhook":
        detail = f"{webhook.get('pending_update_count', 0)} updates waiting" + (
            f"; {failure}" if failure else ""
        )
        remedy = "See that Telegram reaches the public URL over https." if failure else ""
        return Finding(subject="webhook", ok=not failure, detail=detail, remedy=remedy)
    remedy = "It is removed when the gateway starts polling." if url else ""
    return Finding(subject="polling", ok=True, detail="a webhook is set" if url else "ready", remedy=remedy)
