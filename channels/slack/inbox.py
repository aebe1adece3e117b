"""Receive from Slack, by Socket Mode or by posts: decode, accept, and only then acknowledge.

An envelope is acknowledged when what it tells is stored, and a post is answered 200 then; until that Slack
sends it again, with the same key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import aiohttp

from channels.errors import ChannelError, RateLimited, Unauthorized
from channels.message import Ignored
from channels.port import Accept, Answer, Inbox, Incoming
from channels.slack import codec, verifier
from channels.slack.api import Api
from channels.slack.settings import SlackSettings
from channels.supervision import supervise

PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between tries while Slack cannot be reached, or updates cannot be stored."""

RECEIVING, INTERRUPTED = True, False
FORM = "application/x-www-form-urlencoded"
_ENVELOPES = {"events_api", "slash_commands", "interactive"}

log = logging.getLogger(__name__)


class SlackInbox(Inbox):
    """The receiving half of a Slack app."""

    def __init__(self, api: Api, settings: SlackSettings, *, channel: str, bot: codec.Bot) -> None:
        self._api = api
        self._settings = settings
        self._channel = channel
        self._bot = bot
        self._stop = asyncio.Event()

    async def run(self, accept: Accept, *, receiving: Callable[[bool], None]) -> None:
        """Receive until cancelled.

        The work is a task of its own: on Python 3.11 something below may swallow a cancellation, and then
        the flag ends the loop, while this method returns in time.
        """
        self._stop = asyncio.Event()
        listens = self._settings.mode == "socket"
        await supervise(self._listen(accept, receiving) if listens else self._wait(receiving), self._stop)

    async def receive(self, request: Incoming, accept: Accept) -> Answer:
        """Take one post: 401 without Slack's signature, 400 for garbage, 503 when it cannot be stored."""
        secret = self._settings.signing_secret
        if self._settings.mode != "http" or secret is None:
            return Answer(status=401)
        if not verifier.is_signed(secret.get_secret_value(), request.headers, request.body, now=time.time()):
            return Answer(status=401)
        envelope = _envelope(request)
        if envelope is None:
            return Answer(status=400)
        if envelope["type"] == "url_verification":
            return Answer(status=200, body=json.dumps({"challenge": envelope["payload"]}).encode())
        return Answer(status=200 if await self._take(envelope, accept) else 503)

    async def _wait(self, receiving: Callable[[bool], None]) -> None:
        """Make sure of the token, then wait: posts come through `receive`."""
        stop, failures = self._stop, 0
        while not stop.is_set():
            try:
                await self._api.identify()
            except ChannelError as error:
                failures = await self._back_off(error, failures, receiving)
            else:
                receiving(RECEIVING)
                await asyncio.Event().wait()

    async def _listen(self, accept: Accept, receiving: Callable[[bool], None]) -> None:
        """Keep a socket open; one that worked is replaced with hardly a pause."""
        stop, failures = self._stop, 0
        while not stop.is_set():
            try:
                async with self._api.socket() as socket:
                    greeted = await self._converse(socket, accept, receiving, stop)
            except ChannelError as error:
                failures = await self._back_off(error, failures, receiving)
                continue
            if not stop.is_set():
                failures = await self._pause(0 if greeted else failures)

    async def _converse(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        accept: Accept,
        receiving: Callable[[bool], None],
        stop: asyncio.Event,
    ) -> bool:
        """Take frames until the connection is to be replaced; say whether it ever worked."""
        greeted = False
        async for frame in socket:
            envelope = _parsed(frame.data) if frame.type is aiohttp.WSMsgType.TEXT else None
            kind = envelope.get("type") if isinstance(envelope, dict) else None
            if kind == "hello":
                greeted = True
                receiving(RECEIVING)
            elif kind == "disconnect":
                _check_reason(envelope.get("reason") if isinstance(envelope, dict) else None)
                return greeted
            elif (
                isinstance(kind, str)
                and kind in _ENVELOPES
                and not await self._keep(socket, envelope, accept, stop)
            ):
                break
            if stop.is_set():
                return greeted
        receiving(INTERRUPTED)
        return greeted

    async def _keep(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        envelope: Any,
        accept: Accept,
        stop: asyncio.Event,
    ) -> bool:
        """Store an envelope, then acknowledge it; later ones wait, so that order is kept."""
        for pause in PAUSES:
            if stop.is_set():
                return False
            if await self._take(envelope, accept):
                break
            await asyncio.sleep(pause)
        else:
            return False
        if stop.is_set():
            return False
        try:
            await socket.send_str(json.dumps({"envelope_id": envelope.get("envelope_id")}))
        except (aiohttp.ClientError, OSError):
            return False
        return True

    async def _take(self, envelope: object, accept: Accept) -> bool:
        """Decode and accept one envelope; say whether Slack may forget it."""
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

    async def _back_off(self, error: ChannelError, failures: int, receiving: Callable[[bool], None]) -> int:
        """Wait before the next try; an error that only an operator can mend is raised."""
        if error.remedy == "operator":
            raise error
        receiving(INTERRUPTED)
        log.warning("slack: not receiving: %s", error)
        if isinstance(error, RateLimited):
            await asyncio.sleep(error.retry_after)
            return failures + 1
        return await self._pause(failures)

    async def _pause(self, failures: int) -> int:
        await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
        return failures + 1


def _check_reason(reason: object) -> None:
    """A link that was disabled does not come back by trying."""
    if reason == "link_disabled":
        raise Unauthorized("Socket Mode is switched off for this app: switch it on, or use mode = http")


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
    """A callback of another kind, such as app_rate_limited: taken and ignored."""
    return {"type": str(body["type"]), "payload": None}


def _posted_form(body: bytes) -> dict[str, Any] | None:
    try:
        fields = {name: values[0] for name, values in parse_qs(body.decode(), max_num_fields=100).items()}
    except ValueError:
        return None
    if "payload" in fields:
        payload = _parsed(fields["payload"])
        return {"type": "interactive", "payload": payload} if isinstance(payload, dict) else None
    return {"type": "slash_commands", "payload": fields} if "command" in fields else None
