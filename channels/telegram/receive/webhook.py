"""Register the webhook at Telegram and check whether posts arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from channels.errors import Unauthorized
from channels.telegram.api import Api
from channels.telegram.settings import TelegramSettings


class Webhook:
    """The webhook of one bot; `is_lost` means that Telegram posted elsewhere at the last check."""

    def __init__(self, api: Api, settings: TelegramSettings, allowed_updates: Sequence[str]) -> None:
        self._api = api
        self._settings = settings
        self._allowed_updates = allowed_updates
        self._known_failure: object = None
        self.is_lost = True

    async def register(self) -> None:
        """Register the webhook; raises ChannelError."""
        settings = self._settings
        if settings.webhook_url is None or settings.webhook_secret is None:
            raise Unauthorized("webhook mode needs the gateway's public URL: set DOVECOTE_PUBLIC_URL")
        await self._api.call(
            "setWebhook",
            {
                "url": settings.webhook_url,
                "secret_token": settings.webhook_secret.get_secret_value(),
                "allowed_updates": list(self._allowed_updates),
                "max_connections": settings.webhook_connections,
            },
        )
        self.is_lost, self._known_failure = False, (await self._get_info()).get("last_error_date")

    async def problem(self) -> str:
        """Return why no updates arrive, or "" if they do; raises ChannelError."""
        info = await self._get_info()
        self.is_lost = str(info.get("url") or "").rstrip("/") != self._settings.webhook_url
        return "the webhook was removed or set elsewhere" if self.is_lost else self._failure(info)

    async def _get_info(self) -> Mapping[str, Any]:
        info = await self._api.call("getWebhookInfo", {})
        return info if isinstance(info, Mapping) else {}

    def _failure(self, info: Mapping[str, Any]) -> str:
        """Return why posts fail, while updates wait because of it.

        Telegram keeps reporting the last failure after it is over. So its date is compared with the date it
        had when nothing was waiting, and never with a local clock.
        """
        failed_at = info.get("last_error_date")
        if not info.get("pending_update_count"):
            self._known_failure = failed_at
        if failed_at is None or failed_at == self._known_failure:
            return ""
        return f"Telegram's posts fail: {str(info.get('last_error_message'))[:200]}"
