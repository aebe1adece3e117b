"""Receive from Zalo: a bot polls or is posted to, an Official Account is posted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from channels.errors import Unauthorized
from channels.inbox.calls import parse_json
from channels.inbox.polling import UpdateFeed
from channels.inbox.signatures import is_equal, is_hmac
from channels.inbox.text import clean, identifier, mapping
from channels.zalo.api import BotApi, ZaloApi
from channels.zalo.settings import ZaloSettings

SECRET_HEADER = "x-bot-api-secret-token"  # noqa: S105 - the header's name, not a secret
SIGNATURE_HEADER = "x-zevent-signature"
CHECK_SECONDS = 60.0


class PolledUpdates(UpdateFeed):
    """A bot's updates. Zalo forgets an update that it has given out: it is kept here until it is stored."""

    pause = 0.1

    def __init__(self, api: BotApi, settings: ZaloSettings) -> None:
        self._api = api
        self._seconds = settings.poll_seconds
        self._waiting: list[Any] = []
        self._is_first = True

    async def prepare(self) -> None:
        """Remove a webhook, which would keep updates away."""
        await self._api.call("deleteWebhook", {})

    async def fetch(self) -> Sequence[Any]:
        """Return what is not stored yet, or wait for the next update; the first time not long."""
        if self._waiting:
            return list(self._waiting)
        seconds = 1 if self._is_first else self._seconds
        self._is_first = False
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


def feed_of(api: ZaloApi, settings: ZaloSettings) -> UpdateFeed:
    """Return what polls a bot's updates, or checks that they are posted."""
    polls = isinstance(api, BotApi) and settings.polls
    return PolledUpdates(api, settings) if polls else PostedUpdates(api, settings)  # type: ignore[arg-type]


def is_signed(settings: ZaloSettings, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a post has the bot's secret, or the Official Account's signature."""
    if settings.platform == "bot":
        secret = settings.posting_secret
        return secret is not None and is_equal(headers.get(SECRET_HEADER, ""), secret.get_secret_value())
    if settings.signature == "hmac":
        return is_hmac(settings.oa_secret, headers, body, header=SIGNATURE_HEADER, prefix="mac=")
    key = settings.oa_secret.get_secret_value() if settings.oa_secret else ""
    stamp = identifier(mapping(parse_json(body)).get("timestamp"))
    expected = sha256(f"{settings.app_id}".encode() + body + f"{stamp}{key}".encode()).hexdigest()
    return bool(key) and is_equal(headers.get(SIGNATURE_HEADER, ""), f"mac={expected}")
