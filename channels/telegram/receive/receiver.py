"""Receive from Telegram, by long polling or as a webhook: decode, accept, and only then acknowledge.

Telegram keeps an update until a poll asks for a later one, or until the webhook answers 2xx; so nothing is
stored here, and a crash between accepting and acknowledging brings the update once more, with the same key.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging

from channels.errors import ChannelError, Conflict, RateLimited, Rejected, Unauthorized
from channels.message import Ignored, Update
from channels.port import Accept, Answer, Inbox, Incoming, Receiving
from channels.supervision import supervise
from channels.telegram import payloads
from channels.telegram.api import Api
from channels.telegram.receive import codec
from channels.telegram.receive.albums import LOOK_SECONDS, Shelf
from channels.telegram.receive.update_queue import Backlog
from channels.telegram.receive.webhook import Webhook
from channels.telegram.send import command_menu
from channels.telegram.settings import TelegramSettings

SECRET_HEADER = "x-telegram-bot-api-secret-token"  # noqa: S105 - the header's name, not a secret
WANTED = ["message", "edited_message", "callback_query", "message_reaction"]
BATCH = 100
PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between tries while Telegram cannot be reached, or updates cannot be stored."""

HASTE = 0.2
"""Seconds an empty answer takes at the least."""

RECEIVING, INTERRUPTED = True, False

log = logging.getLogger(__name__)


class TelegramInbox(Inbox):
    """The receiving half of a Telegram bot."""

    def __init__(
        self, api: Api, settings: TelegramSettings, shelf: Shelf, *, channel: str, bot: payloads.Bot
    ) -> None:
        self._api = api
        self._settings = settings
        self._shelf = shelf
        self._channel = channel
        self._bot = bot
        self._stop = asyncio.Event()

    async def run(self, accept: Accept, *, receiving: Receiving) -> None:
        """Receive until cancelled.

        The work is a task of its own: on Python 3.11 something below may swallow a cancellation, and then
        the flag ends the loop, while this method returns in time.
        """
        self._stop = asyncio.Event()
        polls = self._settings.mode == "polling"
        work = self._poll(accept, receiving) if polls else self._be_posted_to(accept, receiving)
        await supervise(work, self._stop)

    async def receive(self, request: Incoming, accept: Accept) -> Answer:
        """Take one posted update: 401 without our secret, 400 for garbage, 503 when it cannot be stored."""
        if not self._is_signed(request):
            return Answer(status=401)
        update = _parsed(request.body)
        if codec.number_of(update) is None:
            return Answer(status=400)
        return Answer(status=200 if await self._take_posted(update, accept) else 503)

    async def _take_posted(self, update: object, accept: Accept) -> bool:
        """Store one posted update, after an album that came before it, or a part of an album."""
        album, room = codec.album_of(update), codec.room_of(update)
        if room is not None and not await self._shelf.finish(room, but=album):
            return False
        if album is not None and self._settings.album_seconds:
            try:
                if await self._shelf.keep(album, update, accept):
                    return True
            except Exception as error:  # noqa: BLE001 - whatever kept it from being stored, Telegram has to keep it
                log.warning("telegram: a part of an album is not stored: %r", error)
                return False
        return await self._take(codec.decode(update, channel=self._channel, bot=self._bot), accept)

    def _is_signed(self, request: Incoming) -> bool:
        secret = self._settings.webhook_secret
        if self._settings.mode != "webhook" or secret is None:
            return False
        shown = request.headers.get(SECRET_HEADER, "").encode("utf-8", "surrogatepass")
        return hmac.compare_digest(shown, secret.get_secret_value().encode())

    async def _be_posted_to(self, accept: Accept, receiving: Receiving) -> None:
        """Tell Telegram where to post, then see now and then that it still does, and look after albums."""
        webhook = Webhook(self._api, self._settings, WANTED)
        await self._register(webhook, receiving)
        await command_menu.publish(self._api)
        while not self._stop.is_set():
            await self._shelf.look(accept)
            await asyncio.sleep(min(LOOK_SECONDS, self._settings.webhook_check_seconds))
            await self._check(webhook, receiving)

    async def _check(self, webhook: Webhook, receiving: Receiving) -> None:
        """See whether Telegram posts to us; a registration that somebody else took away is made again."""
        try:
            fault = await webhook.fault()
        except ChannelError as error:
            if error.remedy == "operator":
                raise
            log.warning("telegram: the webhook cannot be looked at: %s", error)
            return
        receiving(not fault, fault)
        if fault:
            log.warning("telegram: not receiving: %s", fault)
        if webhook.is_lost:
            await self._register(webhook, receiving)

    async def _register(self, webhook: Webhook, receiving: Receiving) -> None:
        """Register until Telegram takes it; what it refuses for good is an operator's matter."""
        stop, failures = self._stop, 0
        while not stop.is_set():
            try:
                await webhook.register()
            except Rejected as error:
                raise Unauthorized(str(error)) from error
            except ChannelError as error:
                failures = await self._back_off(error, failures, receiving)
            else:
                receiving(RECEIVING)
                return

    async def _poll(self, accept: Accept, receiving: Receiving) -> None:
        stop = self._stop
        await self._drop_webhook()
        await command_menu.publish(self._api)
        clock = asyncio.get_running_loop().time
        backlog = Backlog(self._settings.album_seconds, clock)
        failures, contested_since = 0, None
        while not stop.is_set():
            try:
                updates = await self._ask(backlog, wait=failures == 0)
            except Conflict as error:
                contested_since = clock() if contested_since is None else contested_since
                if clock() - contested_since >= self._settings.conflict_seconds:
                    raise
                failures = await self._back_off(error, failures, receiving)
                await self._drop_webhook()
            except ChannelError as error:
                failures = await self._back_off(error, failures, receiving)
            else:
                contested_since = contested_since if failures else None  # a poll that waited was left alone
                receiving(RECEIVING)
                stored = await self._take_all(updates, backlog, accept, stop)
                failures = 0 if stored else await self._pause(failures)

    async def _drop_webhook(self) -> None:
        """Remove a webhook, which would forbid polling; if that fails, the next poll says so."""
        try:
            await self._api.call("deleteWebhook", {"drop_pending_updates": False})
        except ChannelError as error:
            log.warning("telegram: %s", error)

    async def _ask(self, backlog: Backlog, *, wait: bool) -> list[object]:
        """Ask for updates; the first question, the first after a failure, and one amid an album, at once."""
        offset = backlog.offset
        if backlog.wait is not None:
            await asyncio.sleep(backlog.wait)
        patient = wait and offset is not None and backlog.wait is None
        seconds = self._settings.poll_seconds if patient else 0
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
        self, updates: list[object], backlog: Backlog, accept: Accept, stop: asyncio.Event
    ) -> bool:
        """Take what is due, in order; say whether to go on at once."""
        stored = True
        for piece in backlog.due(updates):
            decoded = codec.decode_album(piece.updates, channel=self._channel, bot=self._bot)
            stored = not stop.is_set() and await self._take(decoded, accept)
            if not stored:
                break
            backlog.take(piece)
        moved = backlog.advance(updates)
        return stored and (moved or not updates or backlog.wait is not None)

    async def _take(self, decoded: Update | Ignored, accept: Accept) -> bool:
        """Accept one update; say whether Telegram may forget it."""
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

    async def _back_off(self, error: ChannelError, failures: int, receiving: Receiving) -> int:
        """Wait before the next try; an error that only an operator can mend is raised."""
        if error.remedy == "operator" and not isinstance(error, Conflict):
            raise error
        receiving(INTERRUPTED, str(error))
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
