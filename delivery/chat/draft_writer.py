"""Update a draft by one call: record it in the draft's row, make it, and store the result.

On platforms with the feature STREAM the adapter gets the text so far and the text it showed last. It appends
if the text has only grown, and replaces the message if it begins differently (the turn was started again). On
other platforms a placeholder is sent and then edited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from channels.commonmark.markup import split
from channels.errors import Ambiguous, ChannelError, RateLimited, Unreachable
from channels.message import Address, DraftText, Reply
from channels.port import ChannelFeature, ChannelLimits
from delivery.chat import draft_store
from delivery.chat.draft_store import DraftWrite
from delivery.chat.outcomes import pause_for
from delivery.chat.sink import ConnectedBot, idempotency_key
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database, DatabaseUnavailable
from delivery.deliveries import destinations

log = structlog.get_logger(__name__)

WRITE_SECONDS = 3.0
"""Seconds that one call for a draft may take; a crashed writer delays the final text no longer than that."""

FIRST_CALL_SECONDS = 20.0
"""Seconds that a draft's first call may take: its answer has the id that later calls need."""

_ELLIPSIS = " …"


@dataclass(slots=True, kw_only=True)
class Draft:
    """The draft of one message in one chat; calls are made under its lock.

    `shown` is its visible text. `is_preview`: the platform hides it by itself. `announced`: its row exists.
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
    """Makes the calls for drafts; the caller holds the draft's lock."""

    def __init__(
        self,
        database: Database,
        *,
        write_seconds: float = WRITE_SECONDS,
        first_call_seconds: float = FIRST_CALL_SECONDS,
    ) -> None:
        self._database = database
        self._write_seconds = write_seconds
        self._first_call_seconds = first_call_seconds
        self._first_calls: set[asyncio.Timeout] = set()

    def hurry(self) -> None:
        """Give the first calls in progress no more time than other calls, because the process stops."""
        end = asyncio.get_running_loop().time() + self._write_seconds
        for call in self._first_calls:
            if (limit := call.when()) is not None and limit > end:
                call.reschedule(end)

    async def update(self, bot: ConnectedBot, address: Address, draft: Draft, text: str) -> None:
        """Make one call that shows the text, unless the final text has claimed the draft."""
        if draft.closed or not await self._begin_write(bot, address, draft, text):
            return
        key = draft_key(draft.message, draft.target)
        if ChannelFeature.STREAM in bot.features:
            draft_text = DraftText(
                key=key,
                text=text,
                previous_text=draft.shown,
                platform_id=draft.platform_id,
                recipient_id=draft.asker,
            )
            await self._update_streamed(bot, address, draft, draft_text)
            return
        reply = Reply(text=with_ellipsis(text, bot.limits), key=key)
        if draft.platform_id is None:
            # After a failed first call no other one is made; the final text looks for an unanswered one.
            call = self._send_placeholder(bot, address, draft, reply)
            draft.closed = await self._attempt_first(bot, address, draft, call) is not None
        else:
            await self.attempt(bot, address, bot.sender.edit(address, draft.platform_id, reply))
        draft.shown = text

    async def _update_streamed(
        self, bot: ConnectedBot, address: Address, draft: Draft, draft_text: DraftText
    ) -> None:
        call = self._send_streamed(bot, address, draft, draft_text)
        if draft_text.platform_id is None:
            error = await self._attempt_first(bot, address, draft, call)
        else:
            error = await self.attempt(bot, address, call)
        if error is None:
            draft.shown = draft_text.text
        elif not isinstance(error, RateLimited | Unreachable):
            # The visible text is unknown now, so nothing can be appended; the final text replaces it.
            draft.closed = True

    async def _send_streamed(
        self, bot: ConnectedBot, address: Address, draft: Draft, draft_text: DraftText
    ) -> None:
        sent = await bot.sender.update_draft(address, draft_text)
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

    async def _begin_write(self, bot: ConnectedBot, address: Address, draft: Draft, text: str) -> bool:
        """Record that a call is in progress; False when none may be made (now, or ever)."""
        now = utc_now()
        destination = address.destination
        async with self._database.begin() as connection:
            state = await destinations.get_state(connection, destination, bot=bot.bot_destination(address))
            if state.dead_reason is None and (wait := state.remaining_pause(now)) > 0:
                draft.due += wait
                return False
            if state.dead_reason is not None or not await self._may_begin(bot, draft, connection, now):
                draft.closed = True
                return False
            busy_until = now + timedelta(seconds=self._write_seconds)
            write = DraftWrite(
                account=bot.account,
                message=draft.message,
                target=draft.target,
                turn=draft.turn,
                text=text,
                now=now,
                busy_until=busy_until,
            )
            row = await draft_store.begin_write(connection, write)
        draft.closed = row is None
        draft.announced = True
        draft.platform_id = row.platform_id if row is not None else None
        return row is not None

    @staticmethod
    async def _may_begin(bot: ConnectedBot, draft: Draft, connection: Connection, now: datetime) -> bool:
        """Before the first call, load the visible text; return False if the turn has ended."""
        if draft.announced:
            return True
        if draft.turn and not await draft_store.may_begin(
            connection, bot.account, draft.turn, draft.target, now=now
        ):
            return False
        row = await draft_store.get(connection, draft.message, draft.target)
        draft.shown = row.text if row is not None and row.platform_id is not None else ""
        return True

    async def _attempt_first(
        self, bot: ConnectedBot, address: Address, draft: Draft, call: Coroutine[None, None, None]
    ) -> ChannelError | TimeoutError | None:
        """Make a draft's first call and wait for a late answer; return the error, if it failed."""
        limit = asyncio.timeout(self._first_call_seconds)
        self._first_calls.add(limit)
        try:
            error = await self.attempt(bot, address, self._report_while(draft, call), limit)
        finally:
            self._first_calls.discard(limit)
        if error is not None and not isinstance(error, Ambiguous | TimeoutError):
            async with self._database.begin() as connection:
                await draft_store.withdraw(connection, draft.message, draft.target)
        return error

    async def _report_while(self, draft: Draft, call: Coroutine[None, None, None]) -> None:
        """Await a call, and record in the draft's row that it is in progress."""
        task = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({task}, timeout=self._write_seconds / 2))[0]:
                await self._extend_write(draft)
            await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _extend_write(self, draft: Draft) -> None:
        until = utc_now() + timedelta(seconds=self._write_seconds)
        with suppress(DatabaseUnavailable):
            async with self._database.begin() as connection:
                await draft_store.extend_write(connection, draft.message, draft.target, until=until)

    async def attempt(
        self,
        bot: ConnectedBot,
        address: Address,
        call: Awaitable[object],
        limit: asyncio.Timeout | None = None,
    ) -> ChannelError | TimeoutError | None:
        """Make a call whose failure is only logged; return the error, if it failed."""
        try:
            async with limit or asyncio.timeout(self._write_seconds):
                await call
        except RateLimited as error:
            await self._pause(bot, address, error)
            return error
        except (ChannelError, TimeoutError) as error:
            log.info(
                "draft.update_failed",
                channel=address.channel,
                kind=type(error).__name__,
                error=str(error) or "the platform did not answer in time",
            )
            return error
        return None

    async def _pause(self, bot: ConnectedBot, address: Address, error: RateLimited) -> None:
        """Pause the chat or the bot in all replicas, because the platform asks for it."""
        pause_for(bot.rate_limiter, error, address)
        paused = bot.bot_destination(address) if error.scope == "account" else address.destination
        until = utc_now() + timedelta(seconds=error.retry_after)
        async with self._database.begin() as connection:
            await destinations.pause(connection, paused, account=bot.account, until=until)

    async def send_typing(self, bot: ConnectedBot, address: Address) -> None:
        """Show the platform's typing indicator."""
        await self.attempt(bot, address, bot.sender.typing(address))


def draft_key(message: str, target: str) -> str:
    """Return the key of a draft's calls, by which the platform may recognise its message."""
    return idempotency_key(f"{message} {target}")


def first_part(text: str, limits: ChannelLimits) -> str:
    """Return the part of a text that a draft shows: all of it, or the first part within the length limit."""
    text = text.rstrip()
    return text if limits.measure(text) <= limits.text else split(text, limits.text, limits.measure)[0]


def with_ellipsis(text: str, limits: ChannelLimits) -> str:
    """Return a text with an ellipsis at its end, if that is within the length limit."""
    extended = text + _ELLIPSIS
    return extended if limits.measure(extended) <= limits.text else text
