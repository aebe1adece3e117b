"""Receive from Zalo: a bot polls or is posted to, an Official Account is posted to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from channels.errors import Unauthorized
from channels.inbox.calls import parse_json
from channels.inbox.polling import UpdateFeed
from channels.inbox.receiver import InboxReceiver
from channels.inbox.signatures import hmac_sha256, is_equal
from channels.inbox.text import clean, identifier, mapping
from channels.message import IgnoredUpdate, Update
from channels.port import WebhookRequest
from channels.zalo.api import Bot, BotApi, ZaloApi
from channels.zalo.receive import codec
from channels.zalo.settings import ZaloSettings

SECRET_HEADER = "x-bot-api-secret-token"  # noqa: S105 - the header's name, not a secret
CHECK_SECONDS = 60.0


class PolledUpdates(UpdateFeed):
    """A bot's updates. Zalo forgets an update that it has given out: it is kept here until it is stored."""

    pause = 0.1

    def __init__(self, api: BotApi, settings: ZaloSettings) -> None:
        self._api = api
        self._seconds = settings.poll_seconds
        self._waiting: list[Any] = []
        self._is_first = True

    async def fetch(self) -> Sequence[Any]:
        """Return what is not stored yet, or wait for the next update."""
        if self._waiting:
            return list(self._waiting)
        seconds = self._seconds
        if self._is_first:  # tell soon that updates arrive; a webhook would keep them away
            await self._api.call("deleteWebhook", {})
            self._is_first, seconds = False, 1
        result = await self._api.call("getUpdates", {"timeout": str(seconds)}, timeout=seconds + 10.0)
        found = result if isinstance(result, list) else [result] if result else []
        self._waiting += found
        return list(self._waiting)

    async def confirm(self, raw: Any) -> None:
        """Forget an update that is stored."""
        self._waiting.remove(raw)


class PostedUpdates(UpdateFeed):
    """No updates, because they are posted: checks the token and the webhook at intervals."""

    pause = CHECK_SECONDS

    def __init__(self, api: ZaloApi, settings: ZaloSettings) -> None:
        self._api = api
        self._settings = settings

    async def fetch(self) -> Sequence[Any]:
        """Check the token, and register the bot's webhook where it is another one."""
        settings = self._settings
        if not isinstance(self._api, BotApi):
            await self._api.identify()
            return ()
        info = mapping(await self._api.call("getWebhookInfo", {}))
        if settings.webhook_url is None or settings.webhook_secret is None:
            raise Unauthorized("webhook mode needs the gateway's public URL: set DOVECOTE_PUBLIC_URL")
        if clean(info.get("url")).rstrip("/") != settings.webhook_url:
            secret = settings.webhook_secret.get_secret_value()
            await self._api.call("setWebhook", {"url": settings.webhook_url, "secret_token": secret})
        return ()

    async def confirm(self, raw: Any) -> None:
        """Nothing is fetched, so nothing is confirmed."""


class ZaloReceiver(InboxReceiver):
    """The receiving half of a bot or an Official Account: it polls, or checks the webhook."""

    def __init__(self, api: ZaloApi, settings: ZaloSettings, *, channel: str, bot: Bot) -> None:
        polls = settings.polls and isinstance(api, BotApi)
        self.feed = PolledUpdates(api, settings) if polls else PostedUpdates(api, settings)  # type: ignore[arg-type]
        self._settings = settings
        self._channel = channel
        self._bot = bot

    def is_signed(self, request: WebhookRequest) -> bool:
        """Return whether a post has the bot's secret or the account's signature."""
        return is_signed(self._settings, request.headers, request.body)

    def decode(self, raw: Any) -> Iterator[Update | IgnoredUpdate]:
        """Decode an update."""
        yield codec.decode(raw, channel=self._channel, bot=self._bot)


def is_signed(settings: ZaloSettings, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a post has the bot's secret, or the Official Account's signature."""
    if settings.platform == "bot":
        secret = settings.webhook_secret.get_secret_value() if settings.webhook_secret else ""
        return settings.mode == "webhook" and is_equal(headers.get(SECRET_HEADER, ""), secret)
    key = settings.oa_secret.get_secret_value() if settings.oa_secret else ""
    stamp = identifier(mapping(parse_json(body)).get("timestamp"))
    if settings.signature == "hmac":
        expected = hmac_sha256(key, body)
    else:
        expected = sha256(f"{settings.app_id}".encode() + body + f"{stamp}{key}".encode()).hexdigest()
    return bool(key) and is_equal(headers.get("x-zevent-signature", ""), f"mac={expected}")
