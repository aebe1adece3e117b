"""Receive from Slack by Socket Mode or HTTP: decode, accept, and only then acknowledge.

An envelope is acknowledged, or a post answered with 200, after its update was stored. Until then Slack sends
it again with the same key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any
from urllib.parse import parse_qs

from channels.errors import ChannelError
from channels.message import IgnoredUpdate
from channels.port import Accept, Receiver, ReceiverStatus, WebhookRequest, WebhookResponse
from channels.slack.api import Api
from channels.slack.errors import error_code
from channels.slack.receive import codec, interactions, signature
from channels.slack.receive.socket_mode import RECEIVING, Backoff, SocketModeClient
from channels.slack.settings import SlackSettings
from channels.supervision import supervise

FORM_CONTENT_TYPE = "application/x-www-form-urlencoded"
TRIGGER_SECONDS = 2.5
"""Seconds that opening a modal may take; Slack's trigger expires after three."""

_EXPIRED_TRIGGER_CODES = {
    "expired_trigger_id",
    "trigger_expired",
    "exchanged_trigger_id",
    "trigger_exchanged",
}

log = logging.getLogger(__name__)


class SlackReceiver(Receiver):
    """The receiving half of a Slack app."""

    def __init__(self, api: Api, settings: SlackSettings, *, channel: str, bot: codec.Bot) -> None:
        self._api = api
        self._settings = settings
        self._channel = channel
        self._bot = bot

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive until cancelled; see `supervise` for how the loop ends."""
        stop, backoff = asyncio.Event(), Backoff(receiving)

        async def handle(envelope: dict[str, Any]) -> bool:
            return await self._accept(envelope, accept)

        client = SocketModeClient(self._api, handle, backoff, stop)
        uses_socket = self._settings.mode == "socket"
        await supervise(client.run() if uses_socket else self._wait_for_posts(backoff, stop), stop)

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Accept one post: 401 without Slack's signature, 400 if malformed, 503 if not stored."""
        secret = self._settings.signing_secret
        if self._settings.mode != "http" or secret is None:
            return WebhookResponse(status=401)
        if not signature.is_signed(secret.get_secret_value(), request.headers, request.body, now=time.time()):
            return WebhookResponse(status=401)
        envelope = _parse_envelope(request)
        if envelope is None:
            return WebhookResponse(status=400)
        if envelope["type"] == "url_verification":
            return WebhookResponse(status=200, body=json.dumps({"challenge": envelope["payload"]}).encode())
        return WebhookResponse(status=200 if await self._accept(envelope, accept) else 503)

    async def _wait_for_posts(self, backoff: Backoff, stop: asyncio.Event) -> None:
        """Check the token, then wait; posts arrive through `receive`."""
        while not stop.is_set():
            try:
                await self._api.identify()
            except ChannelError as error:
                await backoff.back_off(error)
            else:
                backoff.receiving(RECEIVING)
                await stop.wait()

    async def _accept(self, envelope: dict[str, Any], accept: Accept) -> bool:
        """Decode and accept one envelope; return whether it may be acknowledged."""
        modal = interactions.parse_modal_request(envelope, self._bot)
        if modal is not None and await self._open_modal(modal):
            return True
        decoded = codec.decode(envelope, channel=self._channel, bot=self._bot)
        if isinstance(decoded, IgnoredUpdate):
            log.debug("slack.update_ignored: %s", decoded.reason)
            return True
        try:
            await accept(decoded)
        except Exception as error:  # noqa: BLE001 - whatever the reason, Slack must keep it
            log.warning("slack.update_not_stored: %s: %r", decoded.key, error)
            return False
        return True

    async def _open_modal(self, modal: interactions.ModalRequest) -> bool:
        """Open the modal that asks for a comment; False if the press is taken without one.

        A trigger can be used once, within three seconds; after that the user must press again.
        """
        try:
            async with asyncio.timeout(TRIGGER_SECONDS):
                await self._api.call("views.open", {"trigger_id": modal.trigger, "view": modal.view})
        except TimeoutError:
            log.warning("slack.modal_timed_out")
            return False
        except ChannelError as error:
            log.warning("slack.modal_failed: %s", error)
            return error_code(error) in _EXPIRED_TRIGGER_CODES
        return True


def _parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse_envelope(request: WebhookRequest) -> dict[str, Any] | None:
    """Convert a post to an envelope of Socket Mode; None if it is malformed."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM_CONTENT_TYPE:
        return _parse_form(request.body)
    body = _parse_json(request.body)
    if not isinstance(body, dict) or not isinstance(body.get("type"), str):
        return None
    if body["type"] == "url_verification":
        challenge = body.get("challenge")
        return {"type": "url_verification", "payload": challenge} if isinstance(challenge, str) else None
    return (
        {"type": "events_api", "payload": body}
        if body["type"] == "event_callback"
        else _ignored_envelope(body)
    )


def _ignored_envelope(body: dict[str, Any]) -> dict[str, Any]:
    """Return an envelope of another kind, which is acknowledged and ignored."""
    if body["type"] == "app_rate_limited":
        log.warning("slack.events_rate_limited")
    return {"type": str(body["type"]), "payload": None}


def _parse_form(body: bytes) -> dict[str, Any] | None:
    try:
        fields = {name: values[0] for name, values in parse_qs(body.decode(), max_num_fields=100).items()}
    except ValueError:
        return None
    if "payload" in fields:
        payload = _parse_json(fields["payload"])
        return {"type": "interactive", "payload": payload} if isinstance(payload, dict) else None
    if "ssl_check" in fields:  # Slack checks the certificate at times
        return {"type": "ssl_check", "payload": None}
    return {"type": "slash_commands", "payload": fields} if "command" in fields else None
