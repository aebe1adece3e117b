"""Receive from Telegram, by long polling or as a webhook: decode, accept, and only then acknowledge.

Telegram keeps an update until a poll asks for a later one, or until the webhook answers 2xx; so nothing is
stored here, and a crash between accepting and acknowledging brings the update once more, with the same key.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Callable
from typing import Any

from channels.errors import ChannelError, Conflict, RateLimited, Rejected, Unauthorized
from channels.message import Ignored
from channels.port import Accept, Answer, Inbox, Incoming
from channels.supervision import supervise
from channels.telegram import codec
from channels.telegram.adapter import Api
from channels.telegram.settings import TelegramSettings

SECRET_HEADER = "x-telegram-bot-api-secret-token"  # noqa: S105 - the header's name, not a secret
WANTED = ["message", "edited_message", "callback_query"]
BATCH = 100
PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between tries while Telegram cannot be reached, or updates cannot be stored."""

HASTE = 0.2
"""Seconds an empty answer takes at the least."""

RECEIVING, INTERRUPTED = True, False

log = logging.getLogger(__name__)


class TelegramInbox(Inbox):
    """The receiving half of a Telegram bot."""

    def __init__(self, api: Api, settings: TelegramSettings, *, channel: str, bot: codec.Bot) -> None:
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
        polls = self._settings.mode == "polling"
        work = self._poll(accept, receiving) if polls else self._register(receiving)
        await supervise(work, self._stop)

    async def receive(self, request: Incoming, accept: Accept) -> Answer:
        """Take one posted update: 401 without our secret, 400 for garbage, 503 when it cannot be stored."""
        if not self._is_signed(request):
            return Answer(status=401)
        update = _parsed(request.body)
        if codec.number_of(update) is None:
            return Answer(status=400)
        return Answer(status=200 if await self._take(update, accept) else 503)

    def _is_signed(self, request: Incoming) -> bool:
        secret = self._settings.webhook_secret
        if self._settings.mode != "webhook" or secret is None:
            return False
        shown = request.headers.get(SECRET_HEADER, "").encode("utf-8", "surrogatepass")
        return hmac.compare_digest(shown, secret.get_secret_value().encode())

    async def _register(self, receiving: Callable[[bool], None]) -> None:
        """Tell Telegram where to post, then wait."""
        settings = self._settings
        if settings.webhook_url is None or settings.webhook_secret is None:
            raise Unauthorized("webhook mode needs the gateway's public URL (DOVECOTE_PUBLIC_URL)")
        await self._insist(
            "setWebhook",
            {
                "url": settings.webhook_url,
                "secret_token": settings.webhook_secret.get_secret_value(),
                "allowed_updates": WANTED,
                "max_connections": settings.webhook_connections,
            },
            receiving,
        )
        receiving(RECEIVING)
        await asyncio.Event().wait()

    async def _insist(
        self, method: str, parameters: dict[str, Any], receiving: Callable[[bool], None]
    ) -> None:
        """Call until Telegram takes it; what it refuses for good is an operator's matter."""
        stop, failures = self._stop, 0
        while not stop.is_set():
            try:
                await self._api.call(method, parameters)
            except Rejected as error:
                raise Unauthorized(str(error)) from error
            except ChannelError as error:
                failures = await self._back_off(error, failures, receiving)
            else:
                return

    async def _poll(self, accept: Accept, receiving: Callable[[bool], None]) -> None:
        stop = self._stop
        await self._drop_webhook()
        clock = asyncio.get_running_loop().time
        offset: int | None = None
        failures, contested_since = 0, None
        while not stop.is_set():
            try:
                updates = await self._ask(offset, wait=failures == 0 and offset is not None)
            except Conflict as error:
                contested_since = clock() if contested_since is None else contested_since
                if clock() - contested_since >= self._settings.conflict_seconds:
                    raise
                failures = await self._back_off(error, failures, receiving)
                await self._drop_webhook()
            except ChannelError as error:
                failures = await self._back_off(error, failures, receiving)
            else:
                contested_since = None
                receiving(RECEIVING)
                offset, stored = await self._take_all(updates, offset or 0, accept, stop)
                failures = 0 if stored else await self._pause(failures)

    async def _drop_webhook(self) -> None:
        """Remove a webhook, which would forbid polling; if that fails, the next poll says so."""
        try:
            await self._api.call("deleteWebhook", {"drop_pending_updates": False})
        except ChannelError as error:
            log.warning("telegram: %s", error)

    async def _ask(self, offset: int | None, *, wait: bool) -> list[object]:
        """Ask for updates; the first question, and the first after a failure, is answered at once."""
        seconds = self._settings.poll_seconds if wait else 0
        asked = {"timeout": seconds, "limit": BATCH, "allowed_updates": WANTED}
        question = asked if offset is None else {**asked, "offset": offset}
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        updates = await self._api.call("getUpdates", question, patience=seconds + 10.0)
        if not isinstance(updates, list):
            raise ChannelError("getUpdates: the answer is no list")
        if not updates and offset is not None and clock() - asked_at < HASTE:
            await asyncio.sleep(HASTE)  # a server that does not wait is not asked without a pause
        return updates

    async def _take_all(
        self, updates: list[object], offset: int, accept: Accept, stop: asyncio.Event
    ) -> tuple[int, bool]:
        """Take updates in order; return the next offset, and whether to go on at once."""
        before = offset
        for update in updates:
            number = codec.number_of(update)
            if number is None:
                log.warning("telegram: an update without a number is left out")
                continue
            if stop.is_set() or not await self._take(update, accept):
                return offset, False
            offset = number + 1
        return offset, offset != before or not updates

    async def _take(self, update: object, accept: Accept) -> bool:
        """Decode and accept one update; say whether Telegram may forget it."""
        decoded = codec.decode(update, channel=self._channel, bot=self._bot)
        if isinstance(decoded, Ignored):
            log.debug("telegram: ignored %s", decoded.reason)
            return True
        try:
            await accept(decoded)
        except Exception as error:  # noqa: BLE001 - whatever kept it from being stored, Telegram has to keep it
            log.warning(
                "telegram: update %s is not stored, Telegram will send it again: %r", decoded.key, error
            )
            return False
        return True

    async def _back_off(self, error: ChannelError, failures: int, receiving: Callable[[bool], None]) -> int:
        """Wait before the next try; an error that only an operator can mend is raised."""
        if error.remedy == "operator" and not isinstance(error, Conflict):
            raise error
        receiving(INTERRUPTED)
        log.warning("telegram: not receiving: %s", error)
        if isinstance(error, RateLimited):
            await asyncio.sleep(error.retry_after)
            return failures + 1
        return await self._pause(failures)

    async def _pause(self, failures: int) -> int:
        await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
        return failures + 1


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
