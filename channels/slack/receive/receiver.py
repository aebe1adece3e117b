"""Receive from Slack by Socket Mode or HTTP: decode, accept, and only then acknowledge.

An envelope is acknowledged, or a post answered with 200, after its update was stored. Until then Slack sends
it again with the same key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from http import HTTPStatus

from slack_bolt.response import BoltResponse
from slack_sdk.socket_mode.request import SocketModeRequest

from channels.errors import ChannelError
from channels.port import Accept, Receiver, ReceiverStatus, WebhookRequest, WebhookResponse
from channels.slack.api import Api
from channels.slack.receive import signature
from channels.slack.receive.backoff import RECEIVING, Backoff
from channels.slack.receive.bolt import BoltInbox, parse_request
from channels.slack.receive.socket_mode import OrderedSocketModeClient
from channels.slack.workspaces import Workspaces
from channels.supervision import supervise

log = logging.getLogger(__name__)


class SlackReceiver(Receiver):
    """The receiving half of a Slack app."""

    def __init__(self, api: Api, workspaces: Workspaces, *, channel: str) -> None:
        self._api = api
        self._inbox = BoltInbox(api, workspaces, channel=channel)

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive until cancelled; see `supervise` for how the loop ends."""
        stop, backoff = asyncio.Event(), Backoff(receiving)

        async def handle(envelope: SocketModeRequest) -> BoltResponse:
            if stop.is_set():
                return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)
            request = parse_request(envelope.payload, mode="socket_mode")
            if request is None:
                log.debug("slack.update_ignored: a malformed %s", envelope.type)
                return BoltResponse(status=HTTPStatus.OK)
            return await self._inbox.dispatch(request, accept)

        if self._api.settings.mode == "socket":
            await supervise(OrderedSocketModeClient(self._api, handle, backoff).run(), stop)
        else:
            await supervise(self._wait_for_posts(backoff, stop), stop)

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Accept one post: 401 without Slack's signature, 400 if malformed, 503 if not stored."""
        secret = self._api.settings.signing_secret
        if self._api.settings.mode != "http" or secret is None:
            return WebhookResponse(status=401)
        if not signature.is_signed(secret.get_secret_value(), request.headers, request.body, now=time.time()):
            return WebhookResponse(status=401)
        parsed = parse_request(request.body.decode(), mode="http", headers=request.headers)
        if parsed is None:
            return WebhookResponse(status=400)
        if parsed.body.get("type") == "app_rate_limited":
            log.warning("slack.events_rate_limited")
        answer = await self._inbox.dispatch(parsed, accept)
        return WebhookResponse(status=answer.status, body=answer.body.encode())

    async def _wait_for_posts(self, backoff: Backoff, stop: asyncio.Event) -> None:
        """Check the token, then wait; posts arrive through `receive`."""
        while not stop.is_set():
            try:
                if self._api.settings.bot_token is not None:
                    await self._api.identify()
            except ChannelError as error:
                await backoff.back_off(error)
            else:
                backoff.receiving(RECEIVING)
                await stop.wait()
