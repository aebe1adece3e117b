"""Receive from Slack by Socket Mode or HTTP: decode, accept, and only then acknowledge.

An envelope is acknowledged, or a post answered with 200, after its update was stored. Until then Slack sends
it again with the same key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any

import structlog
from slack_bolt.response import BoltResponse
from slack_sdk.socket_mode.request import SocketModeRequest

from channels.errors import ChannelError
from channels.port import Accept, ChannelState, Receiver, ReceiverStatus, WebhookRequest, WebhookResponse
from channels.receiving.backoff import RECEIVING, Backoff
from channels.receiving.unread_rooms import UnreadRooms
from channels.slack.api import Api
from channels.slack.receive import signature
from channels.slack.receive.bolt import BoltInbox, parse_request
from channels.slack.receive.catch_up import READ_SECONDS, CatchUp, Dispatch, workspace_of
from channels.slack.receive.socket_mode import HELLO_SECONDS, OrderedSocketModeClient
from channels.slack.thread_locations import ThreadLocations
from channels.slack.workspaces import SlackWorkspaces
from channels.supervision import run_until_first, supervise

log = structlog.get_logger(__name__)


class SlackReceiver(Receiver):
    """The receiving half of a Slack app."""

    def __init__(
        self,
        api: Api,
        workspaces: SlackWorkspaces,
        locations: ThreadLocations,
        state: ChannelState,
        *,
        channel: str,
        hello_seconds: float = HELLO_SECONDS,
    ) -> None:
        self._api = api
        self._hello_seconds = hello_seconds
        self._inbox = BoltInbox(api, workspaces, locations, channel=channel)
        self._unread = UnreadRooms(state, delays=READ_SECONDS, group_of=workspace_of)
        self._catch_up = CatchUp(workspaces, locations, self._unread)
        self._workspaces = workspaces

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive until cancelled; see `supervise` for how the loop ends."""
        stop, backoff = asyncio.Event(), Backoff(receiving)

        async def handle(envelope: SocketModeRequest) -> BoltResponse:
            if stop.is_set():
                return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)
            request = parse_request(envelope.payload, mode="socket_mode")
            if request is None:
                log.debug("slack.update_ignored", reason=f"a malformed {envelope.type}")
                return BoltResponse(status=HTTPStatus.OK)
            return await self._inbox.dispatch(request, accept)

        async def dispatch(body: dict[str, Any]) -> bool:
            missed = SocketModeRequest(type="events_api", envelope_id="", payload=body)
            return (await handle(missed)).status == HTTPStatus.OK

        if self._api.settings.mode == "socket":
            parts = self._api, handle, backoff, self._catch_up, self._unread
            receive = OrderedSocketModeClient(*parts, hello_seconds=self._hello_seconds).run()
        else:
            receive = self._wait_for_posts(backoff, stop)
        await supervise(self._receive_and_read(receive, dispatch, backoff), stop)

    async def _receive_and_read(
        self, receive: Coroutine[Any, Any, None], dispatch: Dispatch, backoff: Backoff
    ) -> None:
        """Receive, note until when, read what was missed, and watch the token; raises what ends first."""
        noting = self._catch_up.note_receiving(lambda: backoff.is_receiving)
        await run_until_first(receive, noting, self._catch_up.read(dispatch), self._workspaces.watch())

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
        """Check the token and catch up, then wait; posts arrive through `receive`."""
        while not stop.is_set():
            try:
                if self._api.settings.bot_token is not None:
                    await self._api.identify()
                await self._catch_up.begin()
            except ChannelError as error:
                await backoff.back_off(error)
            else:
                backoff.receiving(RECEIVING)
                await stop.wait()
