"""Receive from Telegram by long polling or webhook: decode, accept, and only then acknowledge.

Telegram keeps an update until a poll asks for a later one, or until the webhook answers 2xx. So this module
stores nothing, and a crash between accepting and acknowledging delivers the update again with the same key.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence

import structlog

from channels.errors import ChannelError, ConnectedElsewhere, Rejected, Unauthorized
from channels.inbox.calls import parse_json
from channels.message import IgnoredUpdate
from channels.port import Accept, Receiver, ReceiverStatus, WebhookRequest, WebhookResponse
from channels.receiving.backoff import RECEIVING, Backoff
from channels.supervision import supervise
from channels.telegram.api import Api
from channels.telegram.receive import codec
from channels.telegram.receive.albums import FLUSH_INTERVAL_SECONDS, AlbumBuffer
from channels.telegram.receive.decoder import Decoder
from channels.telegram.receive.update_queue import UpdateQueue
from channels.telegram.receive.webhook import Webhook
from channels.telegram.send import command_menu
from channels.telegram.settings import TelegramSettings

SECRET_HEADER = "x-telegram-bot-api-secret-token"  # noqa: S105 - the header's name, not a secret
ALLOWED_UPDATES = ["message", "edited_message", "callback_query", "message_reaction", "my_chat_member"]
MAX_UPDATES = 100
MIN_POLL_SECONDS = 0.2
"""Minimum seconds between polls that return nothing."""

log = structlog.get_logger(__name__)


class TelegramReceiver(Receiver):
    """The receiving half of a Telegram bot."""

    def __init__(self, api: Api, settings: TelegramSettings, albums: AlbumBuffer, decoder: Decoder) -> None:
        self._api = api
        self._settings = settings
        self._albums = albums
        self._decoder = decoder
        self._stop = asyncio.Event()

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive until cancelled; see `supervise` for how the loop ends."""
        self._stop = asyncio.Event()
        polls = self._settings.mode == "polling"
        run, backoff = self._run_polling if polls else self._run_webhook, Backoff(receiving)
        await supervise(run(accept, backoff), self._stop)

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Accept one posted update: 401 without the secret, 400 if malformed, 503 if not stored."""
        if not self._is_signed(request):
            return WebhookResponse(status=401)
        update = parse_json(request.body)
        if codec.update_id_of(update) is None:
            return WebhookResponse(status=400)
        return WebhookResponse(status=200 if await self._accept_posted(update, accept) else 503)

    async def _accept_posted(self, update: object, accept: Accept) -> bool:
        """Accept one posted update after its room's earlier album, or store a part of an album."""
        album, room = codec.album_of(update), codec.room_of(update)
        if room is not None and not await self._albums.flush(room, except_album=album):
            return False
        if album is not None and self._settings.album_seconds:
            try:
                if await self._albums.add(album, update, accept):
                    return True
            except Exception as error:  # noqa: BLE001 - whatever the reason, Telegram must keep it
                log.warning("telegram.album_part_not_stored", error=repr(error))
                return False
        return await self._accept([update], accept)

    def _is_signed(self, request: WebhookRequest) -> bool:
        secret = self._settings.webhook_secret
        if self._settings.mode != "webhook" or secret is None:
            return False
        given = request.headers.get(SECRET_HEADER, "").encode("utf-8", "surrogatepass")
        return hmac.compare_digest(given, secret.get_secret_value().encode())

    async def _run_webhook(self, accept: Accept, backoff: Backoff) -> None:
        """Register the webhook, then check it and accept left-over albums at intervals."""
        webhook = Webhook(self._api, self._settings, ALLOWED_UPDATES)
        await self._register(webhook, backoff)
        await command_menu.publish(self._api)
        while not self._stop.is_set():
            await self._albums.flush_expired(accept)
            await asyncio.sleep(min(FLUSH_INTERVAL_SECONDS, self._settings.webhook_check_seconds))
            await self._check_webhook(webhook, backoff)

    async def _check_webhook(self, webhook: Webhook, backoff: Backoff) -> None:
        """Check that Telegram posts to this gateway; register again if the webhook was removed."""
        try:
            problem = await webhook.problem()
        except ChannelError as error:
            if error.remedy == "operator":
                raise
            log.warning("telegram.webhook_check_failed", error=str(error))
            return
        backoff.receiving(not problem, problem)
        if problem:
            log.warning("channel.receiving_interrupted", error=problem)
        if webhook.is_lost:
            await self._register(webhook, backoff)

    async def _register(self, webhook: Webhook, backoff: Backoff) -> None:
        """Register the webhook, with back-off; raises Unauthorized if Telegram rejects it."""
        while not self._stop.is_set():
            try:
                await webhook.register()
            except Rejected as error:
                raise Unauthorized(str(error)) from error
            except ChannelError as error:
                await backoff.back_off(error)
            else:
                backoff.reset()
                backoff.receiving(RECEIVING)
                return

    async def _run_polling(self, accept: Accept, backoff: Backoff) -> None:
        stop = self._stop
        await self._delete_webhook()
        await command_menu.publish(self._api)
        clock = asyncio.get_running_loop().time
        queue = UpdateQueue(self._settings.album_seconds, clock)
        contested_since = None
        while not stop.is_set():
            try:
                updates = await self._get_updates(queue, wait=not backoff.failures)
            except ConnectedElsewhere as error:
                contested_since = clock() if contested_since is None else contested_since
                if clock() - contested_since >= self._settings.conflict_seconds:
                    raise
                await backoff.wait_after(error)
                await self._delete_webhook()
            except ChannelError as error:
                await backoff.back_off(error)
            else:
                if not backoff.failures:  # a poll that waited met no other poller
                    contested_since = None
                backoff.receiving(RECEIVING)
                if await self._accept_due(updates, queue, accept, stop):
                    backoff.reset()
                else:
                    await backoff.pause()

    async def _delete_webhook(self) -> None:
        """Remove a webhook, which would prevent polling; the next poll reports a failure."""
        try:
            await self._api.call("deleteWebhook", {"drop_pending_updates": False})
        except ChannelError as error:
            log.warning("telegram.webhook_delete_failed", error=str(error))

    async def _get_updates(self, queue: UpdateQueue, *, wait: bool) -> list[object]:
        """Fetch updates; do not wait on the first call, after a failure, or during an album."""
        offset = queue.offset
        if queue.wait is not None:
            await asyncio.sleep(queue.wait)
        can_wait = wait and offset is not None and queue.wait is None
        seconds = self._settings.poll_seconds if can_wait else 0
        parameters = {"timeout": seconds, "limit": MAX_UPDATES, "allowed_updates": ALLOWED_UPDATES}
        parameters = parameters if offset is None else {**parameters, "offset": offset}
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        updates = await self._api.call("getUpdates", parameters, timeout=seconds + 10.0)
        if not isinstance(updates, list):
            raise ChannelError("getUpdates: the response is not a list")
        if not updates and offset is not None and clock() - asked_at < MIN_POLL_SECONDS:
            await asyncio.sleep(MIN_POLL_SECONDS)  # the server does not wait: do not poll in a tight loop
        return updates

    async def _accept_due(
        self, updates: list[object], queue: UpdateQueue, accept: Accept, stop: asyncio.Event
    ) -> bool:
        """Accept what is due, in order; return whether to continue without a pause."""
        stored = True
        for batch in queue.due(updates):
            stored = not stop.is_set() and await self._accept(batch.updates, accept)
            if not stored:
                break
            queue.mark_stored(batch)
        moved = queue.advance(updates)
        return stored and (moved or not updates or queue.wait is not None)

    async def _accept(self, updates: Sequence[object], accept: Accept) -> bool:
        """Accept one update, or those of an album; return whether it may be acknowledged."""
        try:
            decoded = await self._decoder.decode(updates)
            if isinstance(decoded, IgnoredUpdate):
                log.debug("telegram.update_ignored", reason=decoded.reason)
            else:
                await accept(decoded)
        except Exception as error:  # noqa: BLE001 - whatever the reason, Telegram must keep it
            number = codec.update_id_of(updates[0])
            log.warning("telegram.update_not_stored", update_id=number, error=repr(error))
            return False
        return True
