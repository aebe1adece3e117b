"""Slack's framework Bolt with one middleware: an update is stored, and only then answered.

Bolt parses requests, finds the workspace that each is for, and answers Slack's checks. Dovecote verifies the
signature before Bolt parses anything, and keeps order and durability.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog
from slack_bolt.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse

from channels.errors import ChannelError
from channels.inbox.text import clean, mapping
from channels.message import (
    ButtonPress,
    IgnoredUpdate,
    Message,
    PermissionsChanged,
    RoomMigrated,
    RoomsRenamed,
    Update,
)
from channels.port import Accept
from channels.receiving.expiring_set import ExpiringSet
from channels.slack.api import Api
from channels.slack.errors import error_code
from channels.slack.payloads import Bot
from channels.slack.receive import codec, interactions
from channels.slack.send.notices import show_to
from channels.slack.send.workspace_sender import refer
from channels.slack.session import SDK_LOG
from channels.slack.text import mentioned_users
from channels.slack.thread_locations import ThreadLocations
from channels.slack.workspaces import ENTERPRISE, TEAM, UNINSTALL_EVENTS, SlackWorkspaces, Workspace

TRIGGER_SECONDS = 2.5
"""Seconds that opening a modal may take; Slack's trigger expires after three."""

MAX_REMEMBERED, MEMBER_SECONDS = 1000, 600.0
"""Rooms in which the bot was a member lately, and for how long this is assumed."""

LATE_PRESS = "This press came too late to ask for your comment: press the button again."
ABSENT = "I am not a member here, so nobody sees my answer: `/invite` me, or write to me directly."
_ABSENT_CODES = {"not_in_channel", "channel_not_found"}
_EXPIRED_CODES = {"expired_trigger_id", "trigger_expired"}
_USED_CODES = {"exchanged_trigger_id", "trigger_exchanged"}

_MALFORMED = (ValueError, TypeError, AttributeError, KeyError, RecursionError)
_STORED, _MALFORMED_REQUEST, _NOT_STORED = 200, 400, 503
_UNREADABLE = 500
"""Bolt's status for an exception; a request that could not be stored has another one."""

log = structlog.get_logger(__name__)


class BoltInbox:
    """Dispatches the requests of one app; a request is answered with 200 after it was stored."""

    def __init__(
        self, api: Api, workspaces: SlackWorkspaces, locations: ThreadLocations, *, channel: str
    ) -> None:
        self._workspaces = workspaces
        self._locations = locations
        self._channel = channel
        self._memberships = ExpiringSet[tuple[str, str]](MAX_REMEMBERED, seconds=MEMBER_SECONDS)
        self._app = AsyncApp(
            name=SDK_LOG.name,  # Bolt sets the level of the logger of this name
            client=api.client(None),
            signing_secret="verified-before",  # noqa: S106 - not a secret: the verification is disabled
            request_verification_enabled=False,
            ignoring_self_events_enabled=False,  # the codec does: that the bot was added to a channel counts
            process_before_response=True,
            before_authorize=self._route,
            authorize=_authorize,
            logger=SDK_LOG,
        )
        self._app.use(self._store)

    async def dispatch(self, request: AsyncBoltRequest, accept: Accept) -> BoltResponse:
        """Store a request's update and return the response to Slack; never raises for bad input."""
        request.context["accept"] = accept
        answer = await self._app.async_dispatch(request)
        if answer.status != _UNREADABLE:
            return answer
        log.error("slack.update_rejected", kind=kind_of(request.body))
        return BoltResponse(status=_STORED if request.mode == "socket_mode" else _MALFORMED_REQUEST)

    async def _route(
        self,
        req: AsyncBoltRequest,
        next: Callable[[], Awaitable[BoltResponse]],  # noqa: A002 - Bolt's name
    ) -> BoltResponse:
        """Find the workspace that a request is for; ignore one that has not installed the app."""
        if kind_of(req.body) != "check":
            try:
                found = await self._find_workspace(req)
            except Exception as error:  # noqa: BLE001 - whatever the reason, Slack must keep it
                log.warning("slack.workspace_not_found", error=repr(error))
                return BoltResponse(status=_NOT_STORED)
            if found is None:
                log.debug("slack.update_ignored", reason="another workspace")
                return BoltResponse(status=_STORED)
            req.context["workspace"] = found
        return await next()

    async def _find_workspace(self, request: AsyncBoltRequest) -> Workspace | None:
        """Return the workspace that a request is for.

        An event of a channel that several installations share is sent once, for any one of them. It is for
        the bot that is mentioned, else for the one that answers in the thread.
        """
        found = await self._workspaces.find(**_place(request))
        event = mapping(request.body.get("event"))
        message = event.get("message") or event.get("previous_message") or event
        mentioned = mentioned_users(str(mapping(message).get("text")))
        if found is None or found.bot.id in mentioned:
            return found
        named = await self._workspaces.find_mentioned(mentioned) if mentioned else None
        room, thread = clean(event.get("channel")), clean(mapping(message).get("thread_ts"))
        owner = await self._locations.owner_of(room, thread) if found.extras and thread and not named else {}
        return named or (await self._workspaces.find(**owner) if owner else None) or found

    async def _store(self, req: AsyncBoltRequest) -> BoltResponse:
        """Decode and accept one update, or open the modal that it asks for."""
        workspace: Workspace = req.context["workspace"]
        envelope = {"type": kind_of(req.body), "payload": req.body}
        modal = interactions.parse_modal_request(envelope, workspace.bot)
        update = codec.decode(envelope, channel=self._channel, bot=workspace.bot)
        if modal and isinstance(update, ButtonPress) and await _open_modal(workspace.api, modal, update):
            return BoltResponse(status=_STORED)
        event = req.body.get("event")
        if isinstance(event, dict) and event.get("type") in UNINSTALL_EVENTS:
            at = float(req.body.get("event_time") or 0)
            return await _keep(event["type"], self._workspaces.delete(event, **_place(req), at=at))
        if isinstance(update, IgnoredUpdate):
            log.debug("slack.update_ignored", reason=update.reason)
            return BoltResponse(status=_STORED)
        of_author = _team_of_author(req)
        other = of_author if of_author != workspace.bot.team else ""
        kept = await _keep(update.key, self._accept(req.context["accept"], _placed(update, workspace), other))
        if isinstance(update, Message) and "command" in req.body and kept.status == _STORED:
            await self._warn_of_absence(workspace, update, clean(req.body.get("response_url")))
        return kept

    async def _warn_of_absence(self, workspace: Workspace, question: Message, url: str) -> None:
        """Tell a user who asked by a slash command if the bot is no member: no answer is shown there.

        The request must be answered within three seconds. Slack is asked once in a while: it allows some apps
        one call a minute.
        """
        api, place = workspace.api, (workspace.bot.team, question.address.room)
        if place in self._memberships:
            return
        code = await _attempt(api.call("conversations.history", {"channel": place[1], "limit": 1}), 1.0)
        if not code:
            self._memberships.add(place)
        elif code in _ABSENT_CODES:
            await _attempt(api.respond(url, {"response_type": "ephemeral", "text": ABSENT}), 1.0)

    async def _accept(self, accept: Accept, update: Update, other_team: str) -> None:
        """Accept an update, and note the room of a message, and the team of an author of another one."""
        if isinstance(update, Message) and other_team:
            await self._locations.note_team(update.author.id, other_team)
        await accept(update)
        if isinstance(update, Message):
            await self._locations.note_room(update.address)


async def _keep(key: str, storing: Awaitable[None]) -> BoltResponse:
    """Store something, and return whether Slack may forget it."""
    try:
        await storing
    except Exception as error:  # noqa: BLE001 - whatever the reason, Slack must keep it
        log.warning("slack.update_not_stored", key=key, error=repr(error))
        return BoltResponse(status=_NOT_STORED)
    return BoltResponse(status=_STORED)


async def _open_modal(api: Api, modal: interactions.ModalRequest, press: ButtonPress) -> bool:
    """Open the modal that asks for a comment; False if the press is taken without one.

    A trigger can be used once, within three seconds; after that the user is told to press again.
    """
    code = await _attempt(api.call("views.open", {"trigger_id": modal.trigger, "view": modal.view}))
    if code in _EXPIRED_CODES:
        code = await _attempt(show_to(api, press, LATE_PRESS))
    return code in {"", *_USED_CODES}


async def _attempt(call: Awaitable[object], seconds: float = TRIGGER_SECONDS) -> str:
    """Make a call for a user who waits; return the error's code, "" if there was none."""
    try:
        async with asyncio.timeout(seconds):
            await call
    except (ChannelError, TimeoutError) as error:
        log.warning("slack.interaction_call_failed", error=str(error) or "Slack did not answer in time")
        return (isinstance(error, ChannelError) and error_code(error)) or "unknown"
    return ""


def _team_of_author(request: AsyncBoltRequest) -> str:
    """Return the workspace of a message's author, "" if unknown; an event may name the organisation (E…)."""
    event = mapping(request.body.get("event"))
    named = clean(event.get("user_team") or event.get("team"))
    return clean(request.context.actor_team_id) if named.startswith("E") else named


def _place(request: AsyncBoltRequest) -> dict[str, str]:
    """Return the workspace of a request, as Bolt reads it; a modal may name only the organisation (E…)."""
    team, enterprise = clean(request.context.team_id), clean(request.context.enterprise_id)
    return {TEAM: "", ENTERPRISE: team} if team.startswith("E") else {TEAM: team, ENTERPRISE: enterprise}


def _placed(update: Update, workspace: Workspace) -> Update:
    """Return an update whose address and files name their workspace, if the app may be in several."""
    if not workspace.extras or isinstance(update, RoomMigrated | RoomsRenamed):
        return update
    if isinstance(update, PermissionsChanged):
        return replace(update, extras={ENTERPRISE: workspace.bot.enterprise})
    placed = replace(update, address=replace(update.address, extras=workspace.extras))
    if not isinstance(placed, Message):
        return placed
    location = {"team": workspace.bot.team, "enterprise": workspace.bot.enterprise}
    files = tuple(replace(file, ref=refer(file.ref, **location)) for file in placed.attachments)
    return replace(placed, attachments=files)


async def _authorize(context: Mapping[str, Any]) -> AuthorizeResult:
    """Tell Bolt the bot that `_route` found; the tokens stay in `Api`."""
    bot: Bot = context["workspace"].bot
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
