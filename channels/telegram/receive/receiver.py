"""Receive from Telegram, by long polling or as a webhook: decode, accept, and only then acknowledge.

Telegram keeps an update until a poll asks for a later one, or until the webhook answers 2xx; so nothing is
stored here, and a crash between accepting and acknowledging brings the update once more, with the same key.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging

from channels.errors import ChannelError, ConnectedElsewhere, RateLimited, Rejected, Unauthorized
from channels.message import IgnoredUpdate, Update
from channels.port import Accept, Receiver, ReceiverStatus, WebhookRequest, WebhookResponse
from channels.supervision import supervise
from channels.telegram import payloads
from channels.telegram.api import Api
from channels.telegram.receive import codec
from channels.telegram.receive.albums import FLUSH_INTERVAL_SECONDS, AlbumBuffer
from channels.telegram.receive.update_queue import UpdateQueue
from channels.telegram.receive.webhook import Webhook
from channels.telegram.send import command_menu
from channels.telegram.settings import TelegramSettings

SECRET_HEADER = "x-telegram-bot-api-secret-token"  # noqa: S105 - the header's name, not a secret
ALLOWED_UPDATES = ["message", "edited_message", "callback_query", "message_reaction"]
MAX_UPDATES = 100
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between tries while Telegram cannot be reached, or updates cannot be stored."""

MIN_POLL_SECONDS = 0.2
"""Seconds an empty answer takes at the least."""

RECEIVING, INTERRUPTED = True, False

log = logging.getLogger(__name__)


class TelegramReceiver(Receiver):
    """The receiving half of a Telegram bot."""

    def __init__(
        self, api: Api, settings: TelegramSettings, albums: AlbumBuffer, *, channel: str, bot: payloads.Bot
    ) -> None:
        self._api = api
        self._settings = settings
        self._albums = albums
        self._channel = channel
        self._bot = bot
        self._stop = asyncio.Event()

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive until cancelled.

        The work is a task of its own: on Python 3.11 something below may swallow a cancellation, and then
        the flag ends the loop, while this method returns in time.
        """
        self._stop = asyncio.Event()
        polls = self._settings.mode == "polling"
        work = self._run_polling(accept, receiving) if polls else self._run_webhook(accept, receiving)
        await supervise(work, self._stop)

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Take one posted update: 401 without our secret, 400 for garbage, 503 when it cannot be stored."""
        if not self._is_signed(request):
            return WebhookResponse(status=401)
        update = _parse_json(request.body)
        if codec.update_id_of(update) is None:
            return WebhookResponse(status=400)
        return WebhookResponse(status=200 if await self._accept_posted(update, accept) else 503)

    async def _accept_posted(self, update: object, accept: Accept) -> bool:
        """Store one posted update, after an album that came before it, or a part of an album."""
        album, room = codec.album_of(update), codec.room_of(update)
        if room is not None and not await self._albums.flush(room, except_album=album):
            return False
        if album is not None and self._settings.album_seconds:
            try:
                if await self._albums.add(album, update, accept):
                    return True
            except Exception as error:  # noqa: BLE001 - whatever kept it from being stored, Telegram has to keep it
                log.warning("telegram.album_part_not_stored: %r", error)
                return False
        return await self._accept(codec.decode(update, channel=self._channel, bot=self._bot), accept)

    def _is_signed(self, request: WebhookRequest) -> bool:
        secret = self._settings.webhook_secret
        if self._settings.mode != "webhook" or secret is None:
            return False
        shown = request.headers.get(SECRET_HEADER, "").encode("utf-8", "surrogatepass")
        return hmac.compare_digest(shown, secret.get_secret_value().encode())

    async def _run_webhook(self, accept: Accept, receiving: ReceiverStatus) -> None:
        """Tell Telegram where to post, then see now and then that it still does, and look after albums."""
        webhook = Webhook(self._api, self._settings, ALLOWED_UPDATES)
        await self._register(webhook, receiving)
        await command_menu.publish(self._api)
        while not self._stop.is_set():
            await self._albums.flush_expired(accept)
            await asyncio.sleep(min(FLUSH_INTERVAL_SECONDS, self._settings.webhook_check_seconds))
            await self._check_webhook(webhook, receiving)

    async def _check_webhook(self, webhook: Webhook, receiving: ReceiverStatus) -> None:
        """See whether Telegram posts to us; a registration that somebody else took away is made again."""
        try:
            fault = await webhook.problem()
        except ChannelError as error:
            if error.remedy == "operator":
                raise
            log.warning("telegram.webhook_check_failed: %s", error)
            return
        receiving(not fault, fault)
        if fault:
            log.warning("telegram.receiving_interrupted: %s", fault)
        if webhook.is_lost:
            await self._register(webhook, receiving)

    async def _register(self, webhook: Webhook, receiving: ReceiverStatus) -> None:
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

    async def _run_polling(self, accept: Accept, receiving: ReceiverStatus) -> None:
        stop = self._stop
        await self._delete_webhook()
        await command_menu.publish(self._api)
        clock = asyncio.get_running_loop().time
        backlog = UpdateQueue(self._settings.album_seconds, clock)
        failures, contested_since = 0, None
        while not stop.is_set():
            try:
                updates = await self._get_updates(backlog, wait=failures == 0)
            except ConnectedElsewhere as error:
                contested_since = clock() if contested_since is None else contested_since
                if clock() - contested_since >= self._settings.conflict_seconds:
                    raise
                failures = await self._back_off(error, failures, receiving)
                await self._delete_webhook()
            except ChannelError as error:
                failures = await self._back_off(error, failures, receiving)
            else:
                contested_since = contested_since if failures else None  # a poll that waited was left alone
                receiving(RECEIVING)
                stored = await self._accept_due(updates, backlog, accept, stop)
                failures = 0 if stored else await self._pause(failures)

    async def _delete_webhook(self) -> None:
        """Remove a webhook, which would forbid polling; if that fails, the next poll says so."""
        try:
            await self._api.call("deleteWebhook", {"drop_pending_updates": False})
        except ChannelError as error:
            log.warning("telegram.webhook_delete_failed: %s", error)

    async def _get_updates(self, queue: UpdateQueue, *, wait: bool) -> list[object]:
        """Ask for updates; the first question, the first after a failure, and one amid an album, at once."""
        offset = queue.offset
        if queue.wait is not None:
            await asyncio.sleep(queue.wait)
        patient = wait and offset is not None and queue.wait is None
        seconds = self._settings.poll_seconds if patient else 0
        asked = {"timeout": seconds, "limit": MAX_UPDATES, "allowed_updates": ALLOWED_UPDATES}
        question = asked if offset is None else {**asked, "offset": offset}
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        updates = await self._api.call("getUpdates", question, timeout=seconds + 10.0)
        if not isinstance(updates, list):
            raise ChannelError("getUpdates: the answer is no list")
        if not updates and offset is not None and clock() - asked_at < MIN_POLL_SECONDS:
            await asyncio.sleep(MIN_POLL_SECONDS)  # a server that does not wait is not asked without a pause
        return updates

    async def _accept_due(
        self, updates: list[object], queue: UpdateQueue, accept: Accept, stop: asyncio.Event
    ) -> bool:
        """Take what is due, in order; say whether to go on at once."""
        stored = True
        for piece in queue.due(updates):
            decoded = codec.decode_album(piece.updates, channel=self._channel, bot=self._bot)
            stored = not stop.is_set() and await self._accept(decoded, accept)
            if not stored:
                break
            queue.mark_stored(piece)
        moved = queue.advance(updates)
        return stored and (moved or not updates or queue.wait is not None)

    async def _accept(self, decoded: Update | IgnoredUpdate, accept: Accept) -> bool:
        """Accept one update; say whether Telegram may forget it."""
        if isinstance(decoded, IgnoredUpdate):
            log.debug("telegram.update_ignored: %s", decoded.reason)
            return True
        try:
            await accept(decoded)
        except Exception as error:  # noqa: BLE001 - whatever kept it from being stored, Telegram has to keep it
            log.warning("telegram.update_not_stored: %s: %r", decoded.key, error)
            return False
        return True

    async def _back_off(self, error: ChannelError, failures: int, receiving: ReceiverStatus) -> int:
        """Wait before the next try; an error that only an operator can mend is raised."""
        if error.remedy == "operator" and not isinstance(error, ConnectedElsewhere):
            raise error
        receiving(INTERRUPTED, str(error))
        log.warning("telegram.receiving_interrupted: %s", error)
        if isinstance(error, RateLimited):
            await asyncio.sleep(error.retry_after)
            return failures + 1
        return await self._pause(failures)

    async def _pause(self, failures: int) -> int:
        await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
        return failures + 1


def _parse_json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
