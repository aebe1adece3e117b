"""Receive from Slack, by Socket Mode or by posts: decode, accept, and only then acknowledge.

An envelope is acknowledged when what it tells is stored, and a post is answered 200 then; until that Slack
sends it again, with the same key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any
from urllib.parse import parse_qs

from channels.errors import ChannelError
from channels.message import Ignored
from channels.port import Accept, Answer, Inbox, Incoming, Receiving
from channels.slack.api import Api
from channels.slack.errors import word_of
from channels.slack.receive import codec, interactions, signature
from channels.slack.receive.socket_mode import RECEIVING, Line, Pace
from channels.slack.settings import SlackSettings
from channels.supervision import supervise

FORM = "application/x-www-form-urlencoded"
TRIGGER_SECONDS = 2.5
"""How long opening a modal may take: Slack forgets its trigger after three seconds."""

_SPENT = {"expired_trigger_id", "trigger_expired", "exchanged_trigger_id", "trigger_exchanged"}

log = logging.getLogger(__name__)


class SlackInbox(Inbox):
    """The receiving half of a Slack app."""

    def __init__(self, api: Api, settings: SlackSettings, *, channel: str, bot: codec.Bot) -> None:
        self._api = api
        self._settings = settings
        self._channel = channel
        self._bot = bot

    async def run(self, accept: Accept, *, receiving: Receiving) -> None:
        """Receive until cancelled.

        The work is a task of its own: on Python 3.11 something below may swallow a cancellation, and then
        the flag ends the loop, while this method returns in time.
        """
        stop, pace = asyncio.Event(), Pace(receiving)

        async def take(envelope: dict[str, Any]) -> bool:
            return await self._take(envelope, accept)

        line = Line(self._api, take, pace, stop)
        listens = self._settings.mode == "socket"
        await supervise(line.listen() if listens else self._wait(pace, stop), stop)

    async def receive(self, request: Incoming, accept: Accept) -> Answer:
        """Take one post: 401 without Slack's signature, 400 for garbage, 503 when it cannot be stored."""
        secret = self._settings.signing_secret
        if self._settings.mode != "http" or secret is None:
            return Answer(status=401)
        if not signature.is_signed(secret.get_secret_value(), request.headers, request.body, now=time.time()):
            return Answer(status=401)
        envelope = _envelope(request)
        if envelope is None:
            return Answer(status=400)
        if envelope["type"] == "url_verification":
            return Answer(status=200, body=json.dumps({"challenge": envelope["payload"]}).encode())
        return Answer(status=200 if await self._take(envelope, accept) else 503)

    async def _wait(self, pace: Pace, stop: asyncio.Event) -> None:
        """Make sure of the token, then wait: posts come through `receive`."""
        while not stop.is_set():
            try:
                await self._api.identify()
            except ChannelError as error:
                await pace.back_off(error)
            else:
                pace.receiving(RECEIVING)
                await stop.wait()

    async def _take(self, envelope: dict[str, Any], accept: Accept) -> bool:
        """Decode and accept one envelope; say whether Slack may forget it."""
        asking = interactions.asking(envelope, self._bot)
        if asking is not None and await self._ask(asking):
            return True
        decoded = codec.decode(envelope, channel=self._channel, bot=self._bot)
        if isinstance(decoded, Ignored):
            log.debug("slack: ignored %s", decoded.reason)
            return True
        try:
            await accept(decoded)
        except Exception as error:  # noqa: BLE001 - whatever kept it from being stored, Slack has to keep it
            log.warning("slack: update %s is not stored, it will come again: %r", decoded.key, error)
            return False
        return True

    async def _ask(self, asking: interactions.Asking) -> bool:
        """Open the modal for a button's words; False when the press has to do without them.

        A trigger is good once, for three seconds: the person whose press came too late presses again.
        """
        try:
            async with asyncio.timeout(TRIGGER_SECONDS):
                await self._api.call("views.open", {"trigger_id": asking.trigger, "view": asking.view})
        except TimeoutError:
            log.warning("slack: a modal did not open in time, the press is taken without a comment")
            return False
        except ChannelError as error:
            log.warning("slack: a modal does not open: %s", error)
            return word_of(error) in _SPENT
        return True


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _envelope(request: Incoming) -> dict[str, Any] | None:
    """Put a post into the shape of Socket Mode; None for garbage."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM:
        return _posted_form(request.body)
    body = _parsed(request.body)
    if not isinstance(body, dict) or not isinstance(body.get("type"), str):
        return None
    if body["type"] == "url_verification":
        challenge = body.get("challenge")
        return {"type": "url_verification", "payload": challenge} if isinstance(challenge, str) else None
    return {"type": "events_api", "payload": body} if body["type"] == "event_callback" else _other(body)


def _other(body: dict[str, Any]) -> dict[str, Any]:
    """A callback of another kind: taken and ignored."""
    if body["type"] == "app_rate_limited":
        log.warning("slack: more events than Slack tells an app in an hour: some are lost")
    return {"type": str(body["type"]), "payload": None}


def _posted_form(body: bytes) -> dict[str, Any] | None:
    try:
        fields = {name: values[0] for name, values in parse_qs(body.decode(), max_num_fields=100).items()}
    except ValueError:
        return None
    if "payload" in fields:
        payload = _parsed(fields["payload"])
        return {"type": "interactive", "payload": payload} if isinstance(payload, dict) else None
    if "ssl_check" in fields:  # Slack looks at our certificate now and then
        return {"type": "ssl_check", "payload": None}
    return {"type": "slash_commands", "payload": fields} if "command" in fields else None
