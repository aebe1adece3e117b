"""Register the webhook at Telegram and check whether posts arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from channels.errors import Unauthorized
from channels.telegram.api import Api
from channels.telegram.settings import TelegramSettings


class Webhook:
    """The webhook of one bot; `is_lost`: at the last check it was not as this gateway registered it."""

    def __init__(self, api: Api, settings: TelegramSettings, allowed_updates: Sequence[str]) -> None:
        self._api = api
        self._settings = settings
        self._allowed_updates = allowed_updates
        self._known_failure: object = None
        self._registered: object = None
        self._may_reset = True
        """Whether a 401 is taken for another program's secret: not twice without a post that arrived."""
        self.is_lost = True

    async def register(self) -> None:
        """Register the webhook; raises ChannelError."""
        settings = self._settings
        if settings.webhook_url is None or settings.webhook_secret is None:
            raise Unauthorized("webhook mode needs the gateway's public URL: set DOVECOTE_PUBLIC_URL")
        place = {"url": settings.webhook_url, "secret_token": settings.webhook_secret.get_secret_value()}
        kinds, connections = list(self._allowed_updates), settings.webhook_connections
        limits = {"allowed_updates": kinds, "max_connections": connections}
        await self._api.call("setWebhook", {**place, **limits})
        info = await self._get_info()
        self.is_lost, self._known_failure = False, info.get("last_error_date")
        self._registered = info.get("allowed_updates")

    async def problem(self) -> str:
        """Return why updates do not arrive, or not all of them, or "" if they do; raises ChannelError."""
        info = await self._get_info()
        is_ours = str(info.get("url") or "").rstrip("/") == self._settings.webhook_url
        is_ours = is_ours and info.get("allowed_updates") == self._registered
        failure = self._failure(info) if is_ours else "the webhook was removed or changed by another program"
        self.is_lost = not is_ours or (self._may_reset and " 401 " in failure)
        self._may_reset &= not self.is_lost
        return failure

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
            self._known_failure, self._may_reset = failed_at, True
        if failed_at is None or failed_at == self._known_failure:
            return ""
        return f"Telegram's posts fail: {str(info.get('last_error_message'))[:200]}"
