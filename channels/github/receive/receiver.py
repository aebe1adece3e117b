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
from channels.inbox.calls import parse_json
from channels.inbox.polling import INTERRUPTED, accept_all, log, poll
from channels.inbox.signatures import hmac_sha256, is_equal
from channels.inbox.text import clean, mapping
from channels.message import IgnoredUpdate, Update
from channels.port import Accept, Receiver, ReceiverStatus, WebhookRequest, WebhookResponse
from channels.supervision import supervise

REGISTER_SECONDS = 5.0


class GitHubReceiver(Receiver):
    """The receiving half of a GitHub App."""

    def __init__(
        self, api: Api, settings: GitHubSettings, deliveries: WebhookDeliveries, *, channel: str, bot: Bot
    ) -> None:
        self._api = api
        self._settings = settings
        self._deliveries = deliveries
        self._channel = channel
        self._bot = bot

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Register the webhook in webhook mode; read the log of deliveries until cancelled."""
        stop = asyncio.Event()
        await supervise(self._run(accept, receiving, stop), stop)

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Accept one posted event: 401 unsigned, 400 malformed, 503 if it cannot be stored."""
        if not self._is_signed(request):
            return WebhookResponse(status=401)
        headers, payload = request.headers, parse_json(request.body)
        event, delivery = headers.get("x-github-event", ""), headers.get("x-github-delivery", "")
        if not isinstance(payload, dict) or not event or not delivery:
            return WebhookResponse(status=400)
        update = {"event": event, "delivery": clean(delivery), "payload": payload}
        return WebhookResponse(status=200 if await accept_all(self._decode(update), accept) else 503)

    async def _run(self, accept: Accept, receiving: ReceiverStatus, stop: asyncio.Event) -> None:
        await self._register(receiving, stop)
        await poll(self._deliveries, self._decode, accept, receiving, stop)

    async def _register(self, receiving: ReceiverStatus, stop: asyncio.Event) -> None:
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

    def _is_signed(self, request: WebhookRequest) -> bool:
        secret = self._settings.webhook_secret
        if self._settings.mode != "webhook" or secret is None:
            return False
        return is_signed(secret.get_secret_value(), request.headers, request.body)

    def _decode(self, update: Mapping[str, Any]) -> Iterator[Update | IgnoredUpdate]:
        if mapping(update.get("payload")):  # a delivery of the log that had arrived has none
            yield codec.decode(update, channel=self._channel, bot=self._bot)


def is_signed(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a post has GitHub's HMAC-SHA256 of its body; the older SHA-1 does not count."""
    return is_equal(headers.get("x-hub-signature-256", ""), f"sha256={hmac_sha256(secret, body)}")
