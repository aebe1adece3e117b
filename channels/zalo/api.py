"""Call the Zalo Bot Platform, or the API of an Official Account: two platforms with one vocabulary."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from channels.inbox.calls import call, fetch
from channels.inbox.errors import require_id
from channels.inbox.text import clean, identifier, mapping
from channels.port import ChannelState
from channels.zalo.errors import bot_error, oa_error
from channels.zalo.settings import ZaloSettings
from channels.zalo.tokens import ZaloAccessTokens
from egress.guard import EgressGuard
from egress.sessions import open_session

NOTHING_NEW = 408
"""The error code of a poll without an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """The bot or the Official Account; `name` is how a group mentions it."""

    id: str
    name: str = ""


class ZaloApi(Protocol):
    """What the adapter does on either platform."""

    session: aiohttp.ClientSession

    @abstractmethod
    async def identify(self) -> Bot:
        """Return the bot; raises Unauthorized if its token is refused."""

    @abstractmethod
    async def send_text(self, chat: str, text: str) -> str:
        """Send a text and return the message's id."""

    @abstractmethod
    async def send_image(self, chat: str, url: str, caption: str) -> str:
        """Send a picture by its public URL and return the message's id."""

    @abstractmethod
    async def send_typing(self, chat: str) -> None:
        """Show that the bot is writing, where the platform can."""

    def fetch(self, url: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a person's picture."""
        return fetch(self.session, url)


class BotApi(ZaloApi):
    """The Bot Platform; its repr shows no token."""

    def __init__(self, session: aiohttp.ClientSession, settings: ZaloSettings) -> None:
        self.session = session
        self._settings = settings

    async def call(self, method: str, parameters: Mapping[str, Any], *, timeout: float = 30.0) -> Any:
        """Call a method and return its result; raises ChannelError."""
        token = self._settings.token.get_secret_value() if self._settings.token else ""
        url = f"{self._settings.base_url}/bot{token}/{method}"
        response = await call(self.session, "POST", url, what=method, json=dict(parameters), timeout=timeout)
        answer = mapping(response.json)
        if answer.get("ok") is True:
            return answer.get("result")
        code = answer.get("error_code")
        if method == "getUpdates" and code == NOTHING_NEW:
            return None
        raise bot_error(method, response, code, clean(answer.get("description")))

    async def identify(self) -> Bot:
        """Return the bot."""
        me = mapping(await self.call("getMe", {}))
        name = clean(me.get("display_name")) or clean(me.get("account_name"))
        return Bot(id=identifier(me.get("id")), name=name)

    async def send_text(self, chat: str, text: str) -> str:
        """Send a text."""
        sent = mapping(await self.call("sendMessage", {"chat_id": chat, "text": text}))
        return require_id(sent.get("message_id"), "sendMessage")

    async def send_image(self, chat: str, url: str, caption: str) -> str:
        """Send a picture by its URL."""
        given = {"chat_id": chat, "photo": url, "caption": caption}
        sent = mapping(await self.call("sendPhoto", given))
        return require_id(sent.get("message_id"), "sendPhoto")

    async def send_typing(self, chat: str) -> None:
        """Show that the bot is writing."""
        await self.call("sendChatAction", {"chat_id": chat, "action": "typing"})


class OaApi(ZaloApi):
    """The API of an Official Account."""

    def __init__(
        self, session: aiohttp.ClientSession, settings: ZaloSettings, tokens: ZaloAccessTokens
    ) -> None:
        self.session = session
        self._settings = settings
        self._tokens = tokens

    async def identify(self) -> Bot:
        """Return the Official Account."""
        data = await self._call("GET", "/v2.0/oa/getoa")
        return Bot(id=identifier(data.get("oa_id")), name=clean(data.get("name")))

    async def send_text(self, chat: str, text: str) -> str:
        """Send a text."""
        return await self._send(chat, {"text": text})

    async def send_image(self, chat: str, url: str, caption: str) -> str:
        """Send a picture by its URL."""
        payload = {"template_type": "media", "elements": [{"media_type": "image", "url": url}]}
        return await self._send(
            chat, {"text": caption, "attachment": {"type": "template", "payload": payload}}
        )

    async def send_typing(self, chat: str) -> None:
        """Do nothing: an Official Account has no such indicator."""

    async def _send(self, chat: str, message: Mapping[str, Any]) -> str:
        body = {"recipient": {"user_id": chat}, "message": message}
        data = await self._call("POST", "/v3.0/oa/message/cs", json=body)
        return require_id(data.get("message_id"), "oa/message/cs")

    async def _call(self, method: str, path: str, **options: Any) -> Mapping[str, Any]:
        return await self._tokens.use(lambda token: self._call_once(method, path, token, **options))

    async def _call_once(self, method: str, path: str, token: str, **options: Any) -> Mapping[str, Any]:
        headers = {"access_token": token}
        url = f"{self._settings.oa_url}{path}"
        response = await call(self.session, method, url, what=path, headers=headers, **options)
        answer = mapping(response.json)
        if answer.get("error") == 0:
            return mapping(answer.get("data"))
        raise oa_error(path, response, answer.get("error"), clean(answer.get("message")))


@asynccontextmanager
async def connect(settings: ZaloSettings, state: ChannelState, guard: EgressGuard) -> AsyncIterator[ZaloApi]:
    """Yield the API of the platform that the settings name, and close it on exit."""
    async with open_session(guard, limit=32, force_close=True) as session:
        if settings.platform == "bot":
            yield BotApi(session, settings)
        else:
            yield OaApi(session, settings, ZaloAccessTokens(session, settings, state))
