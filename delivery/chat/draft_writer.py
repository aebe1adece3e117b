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
from channels.message import Address, Reply, Showing
from channels.port import Feature, Limits
from delivery.chat import draft_store
from delivery.chat.draft_store import Call
from delivery.chat.sink import Bot, reply_key
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from delivery.deliveries import destinations
from delivery.deliveries.route import bot_of

log = structlog.get_logger(__name__)

CALL_SECONDS = 3.0
"""How long one call for a draft may take; also how long a dead writer holds up the final text at the most."""

_UNFINISHED = " …"


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


class Pencil:
    """Makes the calls for drafts; who uses it holds the draft's lock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def draw(self, bot: Bot, address: Address, draft: Draft, text: str) -> None:
        """Make one call that shows the text, unless the final text has claimed the draft."""
        if draft.closed or not await self._announce(address, draft, text):
            return
        key = reply_key(f"{draft.message} {draft.target}")
        if Feature.STREAM in bot.features:
            showing = Showing(
                key=key, text=text, shown=draft.shown, platform_id=draft.platform_id, asker=draft.asker
            )
            await self._show(bot, address, draft, showing)
            return
        reply = Reply(text=unfinished(text, bot.limits), key=key)
        if draft.platform_id is None:
            # A first call that fails may show somewhere or not: the final text is then sent afresh.
            error = await self._attempt(bot, address, self._place(bot, address, draft, reply))
            draft.closed = error is not None
        else:
            await self._attempt(bot, address, bot.channel.edit(address, draft.platform_id, reply))
        draft.shown = text

    async def _show(self, bot: Bot, address: Address, draft: Draft, showing: Showing) -> None:
        error = await self._attempt(bot, address, self._shown(bot, address, draft, showing))
        if error is None:
            draft.shown = showing.text
        elif not isinstance(error, RateLimited | Unreachable):
            # What shows now is not known, so nothing can be added to it; the final text takes its place.
            draft.closed = True

    async def _shown(self, bot: Bot, address: Address, draft: Draft, showing: Showing) -> None:
        sent = await bot.channel.show(address, showing)
        draft.is_preview = sent is None
        if sent is not None and sent.platform_id != draft.platform_id:
            await self._keep(draft, sent.platform_id)

    async def _place(self, bot: Bot, address: Address, draft: Draft, reply: Reply) -> None:
        await self._keep(draft, (await bot.channel.send(address, reply)).platform_id)

    async def _keep(self, draft: Draft, platform_id: str) -> None:
        draft.platform_id = platform_id
        async with self._database.begin() as connection:
            await draft_store.keep(connection, draft.message, draft.target, platform_id)

    async def _announce(self, address: Address, draft: Draft, text: str) -> bool:
        """Write down that a call is under way; False when there is to be none (any more, or for now)."""
        now = utc_now()
        place = address.destination
        async with self._database.begin() as connection:
            weather = await destinations.weather(connection, place, bot=bot_of(place))
            if weather.dead is None and (wait := weather.wait(now)) > 0:
                draft.due += wait
                return False
            if weather.dead is not None or not await self._begins(draft, connection, now):
                draft.closed = True
                return False
            busy_until = now + timedelta(seconds=CALL_SECONDS)
            call = Call(
                message=draft.message,
                target=draft.target,
                turn=draft.turn,
                text=text,
                now=now,
                busy_until=busy_until,
            )
            shown = await draft_store.take_up(connection, call)
        draft.closed = shown is None
        draft.announced = True
        draft.platform_id = shown.platform_id if shown is not None else None
        return shown is not None

    @staticmethod
    async def _begins(draft: Draft, connection: Connection, now: datetime) -> bool:
        """At the first call here: find what an earlier attempt has shown; False when the turn has ended."""
        if draft.announced:
            return True
        if draft.turn and not await draft_store.may_begin(connection, draft.turn, draft.target, now=now):
            return False
        before = await draft_store.find(connection, draft.message, draft.target)
        draft.shown = before.text if before is not None and before.platform_id is not None else ""
        return True

    async def _attempt(
        self, bot: Bot, address: Address, call: Awaitable[object]
    ) -> ChannelError | TimeoutError | None:
        """Make a call of little importance; returns why it failed."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await call
        except RateLimited as error:
            await self._hold(bot, address, error)
            return error
        except (ChannelError, TimeoutError) as error:
            log.info("draft.not_shown", channel=address.channel, error=str(error))
            return error
        return None

    async def _hold(self, bot: Bot, address: Address, error: RateLimited) -> None:
        """A platform that wants a pause gets it from everybody, whoever it has told."""
        place, whole = address.destination, error.scope == "account"
        bot.budget.hold(error.retry_after, room=None if whole else place)
        until = utc_now() + timedelta(seconds=error.retry_after)
        async with self._database.begin() as connection:
            await destinations.hold(
                connection, bot_of(place) if whole else place, account=bot.account, until=until
            )

    async def type(self, bot: Bot, address: Address) -> None:
        """Show that an answer is being worked on."""
        await self._attempt(bot, address, bot.channel.typing(address))


def beginning(text: str, limits: Limits) -> str:
    """Return what a draft shows of a text: all of it, or the first part of one that is too long."""
    text = text.rstrip()
    return text if limits.measure(text) <= limits.text else split(text, limits.text, limits.measure)[0]


def unfinished(text: str, limits: Limits) -> str:
    """Return a text with a sign that more comes, where there is room for it."""
    marked = text + _UNFINISHED
    return marked if limits.measure(marked) <= limits.text else text
