"""One call that brings a draft up to date: announced in its row, made, and remembered.

Where the platform streams (Feature STREAM), all that is said so far is shown by the platform's own means;
the adapter is told what it showed last, so that what only grows can grow, and what does not begin with that
any more (the turn was begun anew) can be replaced. Elsewhere a placeholder is sent and edited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from channels.errors import ChannelError, RateLimited, Unreachable
from channels.markup import split
from channels.message import Address, DraftText, Reply
from channels.port import ChannelFeature, ChannelLimits
from delivery.chat import draft_store
from delivery.chat.draft_store import DraftWrite
from delivery.chat.sink import ConnectedBot, idempotency_key
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from delivery.deliveries import destinations
from delivery.deliveries.route import bot_destination

log = structlog.get_logger(__name__)

WRITE_SECONDS = 3.0
"""How long one call for a draft may take; also how long a dead writer holds up the final text at the most."""

_ELLIPSIS = " …"


@dataclass(slots=True, kw_only=True)
class Draft:
    """One message as it shows in one chat; calls are made under the lock.

    `shown` is what it says, `is_preview` that it goes away by itself.
    """

    message: str
    target: str
    turn: str = ""
    asker: str = ""
    shown: str = ""
    platform_id: str | None = None
    is_preview: bool = False
    announced: bool = False
    closed: bool = False
    due: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class DraftWriter:
    """Makes the calls for drafts; who uses it holds the draft's lock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def update(self, bot: ConnectedBot, address: Address, draft: Draft, text: str) -> None:
        """Make one call that shows the text, unless the final text has claimed the draft."""
        if draft.closed or not await self._begin_write(address, draft, text):
            return
        key = idempotency_key(f"{draft.message} {draft.target}")
        if ChannelFeature.STREAM in bot.features:
            showing = DraftText(
                key=key,
                text=text,
                previous_text=draft.shown,
                platform_id=draft.platform_id,
                recipient_id=draft.asker,
            )
            await self._update_streamed(bot, address, draft, showing)
            return
        reply = Reply(text=with_ellipsis(text, bot.limits), key=key)
        if draft.platform_id is None:
            # A first call that fails may show somewhere or not: the final text is then sent afresh.
            error = await self._attempt(bot, address, self._send_placeholder(bot, address, draft, reply))
            draft.closed = error is not None
        else:
            await self._attempt(bot, address, bot.sender.edit(address, draft.platform_id, reply))
        draft.shown = text

    async def _update_streamed(
        self, bot: ConnectedBot, address: Address, draft: Draft, showing: DraftText
    ) -> None:
        error = await self._attempt(bot, address, self._send_streamed(bot, address, draft, showing))
        if error is None:
            draft.shown = showing.text
        elif not isinstance(error, RateLimited | Unreachable):
            # What shows now is not known, so nothing can be added to it; the final text takes its place.
            draft.closed = True

    async def _send_streamed(
        self, bot: ConnectedBot, address: Address, draft: Draft, showing: DraftText
    ) -> None:
        sent = await bot.sender.update_draft(address, showing)
        draft.is_preview = sent is None
        if sent is not None and sent.platform_id != draft.platform_id:
            await self._save_platform_id(draft, sent.platform_id)

    async def _send_placeholder(
        self, bot: ConnectedBot, address: Address, draft: Draft, reply: Reply
    ) -> None:
        await self._save_platform_id(draft, (await bot.sender.send(address, reply)).platform_id)

    async def _save_platform_id(self, draft: Draft, platform_id: str) -> None:
        draft.platform_id = platform_id
        async with self._database.begin() as connection:
            await draft_store.set_platform_id(connection, draft.message, draft.target, platform_id)

    async def _begin_write(self, address: Address, draft: Draft, text: str) -> bool:
        """Write down that a call is under way; False when there is to be none (any more, or for now)."""
        now = utc_now()
        place = address.destination
        async with self._database.begin() as connection:
            weather = await destinations.get_state(connection, place, bot=bot_destination(place))
            if weather.dead_reason is None and (wait := weather.remaining_pause(now)) > 0:
                draft.due += wait
                return False
            if weather.dead_reason is not None or not await self._may_begin(draft, connection, now):
                draft.closed = True
                return False
            busy_until = now + timedelta(seconds=WRITE_SECONDS)
            call = DraftWrite(
                message=draft.message,
                target=draft.target,
                turn=draft.turn,
                text=text,
                now=now,
                busy_until=busy_until,
            )
            shown = await draft_store.begin_write(connection, call)
        draft.closed = shown is None
        draft.announced = True
        draft.platform_id = shown.platform_id if shown is not None else None
        return shown is not None

    @staticmethod
    async def _may_begin(draft: Draft, connection: Connection, now: datetime) -> bool:
        """At the first call here: find what an earlier attempt has shown; False when the turn has ended."""
        if draft.announced:
            return True
        if draft.turn and not await draft_store.may_begin(connection, draft.turn, draft.target, now=now):
            return False
        before = await draft_store.get(connection, draft.message, draft.target)
        draft.shown = before.text if before is not None and before.platform_id is not None else ""
        return True

    async def _attempt(
        self, bot: ConnectedBot, address: Address, call: Awaitable[object]
    ) -> ChannelError | TimeoutError | None:
        """Make a call of little importance; returns why it failed."""
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await call
        except RateLimited as error:
            await self._pause(bot, address, error)
            return error
        except (ChannelError, TimeoutError) as error:
            log.info("draft.update_failed", channel=address.channel, error=str(error))
            return error
        return None

    async def _pause(self, bot: ConnectedBot, address: Address, error: RateLimited) -> None:
        """A platform that wants a pause gets it from everybody, whoever it has told."""
        place, whole = address.destination, error.scope == "account"
        bot.rate_limiter.pause(error.retry_after, room=None if whole else place)
        until = utc_now() + timedelta(seconds=error.retry_after)
        async with self._database.begin() as connection:
            await destinations.pause(
                connection, bot_destination(place) if whole else place, account=bot.account, until=until
            )

    async def send_typing(self, bot: ConnectedBot, address: Address) -> None:
        """Show that an answer is being worked on."""
        await self._attempt(bot, address, bot.sender.typing(address))


def first_part(text: str, limits: ChannelLimits) -> str:
    """Return what a draft shows of a text: all of it, or the first part of one that is too long."""
    text = text.rstrip()
    return text if limits.measure(text) <= limits.text else split(text, limits.text, limits.measure)[0]


def with_ellipsis(text: str, limits: ChannelLimits) -> str:
    """Return a text with a sign that more comes, where there is room for it."""
    marked = text + _ELLIPSIS
    return marked if limits.measure(marked) <= limits.text else text
