"""Receive GitHub's events: signed posts, and the log of deliveries for what was missed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from channels.errors import ChannelError
from channels.github.api import Api, Bot
from channels.github.receive import codec
from channels.github.receive.deliveries import WebhookDeliveries
from channels.github.settings import GitHubSettings
from channels.inbox.polling import INTERRUPTED, log
from channels.inbox.receiver import InboxReceiver
from channels.inbox.signatures import hmac_sha256, is_equal
from channels.inbox.text import clean, mapping
from channels.message import IgnoredUpdate, Update
from channels.port import ReceiverStatus, WebhookRequest

REGISTER_SECONDS = 5.0


class GitHubReceiver(InboxReceiver):
    """The receiving half of a GitHub App."""

    def __init__(
        self, api: Api, settings: GitHubSettings, deliveries: WebhookDeliveries, *, channel: str, bot: Bot
    ) -> None:
        self._api = api
        self._settings = settings
        self.feed = deliveries
        self._channel = channel
        self._bot = bot

    async def prepare(self, receiving: ReceiverStatus, stop: asyncio.Event) -> None:
        """Tell GitHub where to post, if the gateway knows its URL."""
        url, secret = self._settings.webhook_url, self._settings.webhook_secret
        while self._settings.mode == "webhook" and url and secret and not stop.is_set():
            config = {"url": url, "content_type": "json", "secret": secret.get_secret_value()}
            try:
                await self._api.as_app("PATCH", "/app/hook/config", config)
            except ChannelError as error:
                if error.remedy == "operator":
                    raise
                receiving(INTERRUPTED, str(error))
                log.warning("github.webhook_not_registered: %s", error)
                await asyncio.sleep(REGISTER_SECONDS)
            else:
                return

    def is_signed(self, request: WebhookRequest) -> bool:
        """Return whether a post has GitHub's signature."""
        secret = self._settings.webhook_secret
        if self._settings.mode != "webhook" or secret is None:
            return False
        return is_signed(secret.get_secret_value(), request.headers, request.body)

    def read_post(self, request: WebhookRequest, body: dict[str, Any]) -> Any:
        """Return the event with its name and the id of its delivery, which are headers."""
        headers = request.headers
        event, delivery = headers.get("x-github-event", ""), clean(headers.get("x-github-delivery", ""))
        return {"event": event, "delivery": delivery, "payload": body} if event and delivery else None

    def decode(self, raw: Mapping[str, Any]) -> Iterator[Update | IgnoredUpdate]:
        """Decode an event; a delivery of the log that had arrived has none."""
        if mapping(raw.get("payload")):
            yield codec.decode(raw, channel=self._channel, bot=self._bot)


def is_signed(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a post has GitHub's HMAC-SHA256 of its body; the older SHA-1 does not count."""
    return is_equal(headers.get("x-hub-signature-256", ""), f"sha256={hmac_sha256(secret, body)}")
