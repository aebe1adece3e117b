"""Slack's framework Bolt with one middleware: an update is stored, and only then answered.

Bolt parses requests, finds the workspace that each is for, and answers Slack's checks. Dovecote verifies the
signature before Bolt parses anything, and keeps order and durability.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from slack_bolt.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse

from channels.errors import ChannelError
from channels.message import IgnoredUpdate
from channels.port import Accept
from channels.slack.api import Api
from channels.slack.errors import error_code
from channels.slack.payloads import Bot
from channels.slack.receive import codec, interactions
from channels.slack.session import SDK_LOG

TRIGGER_SECONDS = 2.5
"""Seconds that opening a modal may take; Slack's trigger expires after three."""

_EXPIRED_TRIGGER_CODES = {
    "expired_trigger_id",
    "trigger_expired",
    "exchanged_trigger_id",
    "trigger_exchanged",
}
_MALFORMED = (ValueError, TypeError, AttributeError, KeyError, RecursionError)
_STORED, _NOT_STORED = 200, 503

log = logging.getLogger(__name__)


class BoltInbox:
    """Dispatches the requests of one app; a request is answered with 200 after it was stored."""

    def __init__(self, api: Api, *, channel: str, bot: Bot) -> None:
        self._api = api
        self._channel = channel
        self._bot = bot
        self._app = AsyncApp(
            name="dovecote",
            client=api.client(None),
            signing_secret="verified-before",  # noqa: S106 - not a secret: the verification is disabled
            request_verification_enabled=False,
            process_before_response=True,
            before_authorize=self._route,
            authorize=_authorize,
            logger=SDK_LOG,
        )
        self._app.use(self._store)

    async def dispatch(self, request: AsyncBoltRequest, accept: Accept) -> BoltResponse:
        """Store a request's update and return the response to Slack; never raises for bad input."""
        request.context["accept"] = accept
        return await self._app.async_dispatch(request)

    async def _route(
        self,
        req: AsyncBoltRequest,
        next: Callable[[], Awaitable[BoltResponse]],  # noqa: A002 - Bolt's name
    ) -> BoltResponse:
        """Find the bot of the workspace that a request is for; ignore any other workspace."""
        team = req.context.team_id
        if team and self._bot.team and team != self._bot.team:
            log.debug("slack.update_ignored: another workspace")
            return BoltResponse(status=_STORED)
        req.context["bot"] = self._bot
        return await next()

    async def _store(self, req: AsyncBoltRequest) -> BoltResponse:
        """Decode and accept one update, or open the modal that it asks for."""
        bot: Bot = req.context["bot"]
        envelope = {"type": kind_of(req.body), "payload": req.body}
        modal = interactions.parse_modal_request(envelope, bot)
        if modal is not None and await self._open_modal(modal):
            return BoltResponse(status=_STORED)
        update = codec.decode(envelope, channel=self._channel, bot=bot)
        if isinstance(update, IgnoredUpdate):
            log.debug("slack.update_ignored: %s", update.reason)
            return BoltResponse(status=_STORED)
        try:
            await req.context["accept"](update)
        except Exception as error:  # noqa: BLE001 - whatever the reason, Slack must keep it
            log.warning("slack.update_not_stored: %s: %r", update.key, error)
            return BoltResponse(status=_NOT_STORED)
        return BoltResponse(status=_STORED)

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


async def _authorize(context: Mapping[str, Any]) -> AuthorizeResult:
    """Tell Bolt the bot that `_route` found; the tokens stay in `Api`."""
    bot: Bot = context["bot"]
    return AuthorizeResult(
        enterprise_id=bot.enterprise or None,
        team_id=bot.team or None,
        bot_id=bot.bot_id or None,
        bot_user_id=bot.id,
    )


def kind_of(body: Mapping[str, Any]) -> str:
    """Return the kind of a request's body in the words of Socket Mode, "" if it is of no kind."""
    if "ssl_check" in body or body.get("type") == "url_verification":
        return "check"
    if body.get("type") == "event_callback":
        return "events_api"
    if "command" in body:
        return "slash_commands"
    return "interactive" if isinstance(body.get("type"), str) else ""


def parse_request(
    body: str | dict[str, Any], *, mode: str, headers: Mapping[str, str] | None = None
) -> AsyncBoltRequest | None:
    """Return a request as Bolt reads it, None if it is malformed."""
    try:
        request = AsyncBoltRequest(body=body, headers={**(headers or {})}, mode=mode)
        return request if kind_of(request.body) else None
    except _MALFORMED:
        return None
