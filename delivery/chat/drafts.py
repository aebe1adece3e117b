"""Drafts: a reply that shows in its chat while it is still being said.

    said ──► board (the latest text only) ──► presenter, one a chat ──► pencil: one call that shows more
                                                   │  within the budget that leaves final texts their reserve
    complete ──► the delivery ──► claim ──► edit to the final text (or a plain send, when nothing shows)
    ended early ──► the delivery of its words ──► claim_rest ──► edit to what was said, and those words

The turn is never held up: it writes on a board, and presenters look at it when the budget lets them. A
message said in less than a second has no draft at all. Where a draft shows is a row, so that a repeated
turn, another replica and a delivery after a crash find it; the row also says how long its writer may be in
the middle of a call, so that no late edit can overwrite the final text. A preview (the platform lets it
fade by itself) is shown again before it does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from channels.message import Address
from channels.port import ChannelFeature
from delivery.chat import draft_store
from delivery.chat.draft_store import DraftRow
from delivery.chat.draft_writer import WRITE_SECONDS, Draft, DraftWriter, first_part
from delivery.chat.rate_limit import SendPriority
from delivery.chat.sink import ClaimedDraft, ConnectedBot, GetBot
from delivery.database.clock import utc_now
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.deliveries import routes as route_store
from delivery.deliveries.route import RouteKind

log = structlog.get_logger(__name__)

OnText = Callable[[str, str | None], None]
"""Take the whole of a message (its id and text) so far; None: the message is complete. Never waits."""

RETENTION = timedelta(days=3)
REFRESH_SECONDS = 20.0
"""Seconds after which a preview that has not changed is shown again: Telegram lets one fade after 30."""

_IDLE_SECONDS = 3600.0
_MIN_WAIT_SECONDS = 0.2


@dataclass(slots=True, kw_only=True)
class DraftBuffer:
    """What an agent is saying in a conversation; presenters read it, nobody waits for them."""

    started_at: float
    turn: str = ""
    asker: str = ""
    message: str = ""
    text: str = ""
    message_started_at: float = 0.0
    closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, message: str, text: str | None, now: float) -> None:
        """Replace what stands here; None wipes it."""
        if message != self.message:
            self.message_started_at = now
        self.message, self.text = ("", "") if text is None else (message, text)
        self.changed.set()

    def close(self) -> None:
        """The agent has ended."""
        self.closed = True
        self.changed.set()

    async def wait(self, seconds: float) -> None:
        """Wait for a change, so many seconds at the most."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return
        self.changed.clear()


class Drafts:
    """Shows what is being said in chats. `after`: seconds a message must take before it has a draft."""

    def __init__(
        self,
        *,
        get_bot: GetBot,
        database: Database,
        draft_delay: float = 1.0,
        typing_delay: float = 0.5,
        update_interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._get_bot = get_bot
        self._database = database
        self._writer = DraftWriter(database)
        self._draft_delay = draft_delay
        self._typing_delay = typing_delay
        self._update_interval = update_interval
        self._clock = clock
        self._group: asyncio.TaskGroup | None = None
        self.started = asyncio.Event()
        self._buffers: dict[int, DraftBuffer] = {}
        self._drafts: dict[tuple[str, str], Draft] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Own the presenters until stopped; what shows then is left for the final texts."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.started.set()
            while not stop.is_set():
                await self._delete_old()
                try:
                    async with asyncio.timeout(_IDLE_SECONDS):
                        await stop.wait()
                except TimeoutError:
                    continue
            self._group = None
            for board in self._buffers.values():
                board.close()

    async def _delete_old(self) -> None:
        try:
            async with self._database.begin() as connection:
                await draft_store.delete_before(connection, before=utc_now() - RETENTION)
        except DatabaseUnavailable as error:
            log.warning("draft.cleanup_failed", error=str(error))

    @asynccontextmanager
    async def publish_while(
        self, conversation: str, turn: str = "", asker: str = ""
    ) -> AsyncIterator[OnText | None]:
        """Yield who to tell what is said in a turn of a conversation; None when no chat listens.

        `asker` is the platform's id of the person whom the turn answers.
        """
        targets = await self._chat_targets(conversation) if self._group is not None else []
        if not targets or self._group is None:
            yield None
            return
        board = DraftBuffer(started_at=self._clock(), turn=turn, asker=asker)
        self._buffers[id(board)] = board
        for target in targets:
            self._group.create_task(self._update_chat(board, target))
        try:
            yield lambda message, text: board.write(message, text, self._clock())
        finally:
            del self._buffers[id(board)]
            board.close()

    async def _chat_targets(self, conversation: str) -> list[str]:
        try:
            async with self._database.read() as connection:
                routes = await route_store.list_routes(connection, conversation, None)
        except DatabaseUnavailable:
            return []
        return [route.target for route in routes if route.kind is RouteKind.CHAT]

    async def _update_chat(self, buffer: DraftBuffer, target: str) -> None:
        """Follow a board in one chat, until the agent has ended."""
        address = Address.decode(target)
        last: Draft | None = None
        try:
            while not buffer.closed:
                if last is not None and last.message != buffer.message:
                    await self._close_draft(last)
                if buffer.message:
                    fresh = Draft(message=buffer.message, target=target, turn=buffer.turn, asker=buffer.asker)
                    last = self._drafts.setdefault((buffer.message, target), fresh)
                await buffer.wait(await self._update_once(buffer, address, last))
        except DatabaseUnavailable as error:
            log.warning("draft.interrupted", error=str(error))
        except Exception:  # the outermost loop of a presenter: a draft is a nicety and may harm nobody
            log.exception("draft.failed")
        finally:
            if last is not None:
                await self._close_draft(last)

    async def _update_once(self, buffer: DraftBuffer, address: Address, draft: Draft | None) -> float:
        """Do what can be done now; return how many seconds there is nothing more to do."""
        bot = self._get_bot(address.channel)
        if bot is None:
            return _IDLE_SECONDS
        shows = {ChannelFeature.EDIT, ChannelFeature.STREAM} & bot.features
        if draft is None or not buffer.text.strip() or not shows:
            return await self._send_typing(bot, address, self._clock() - buffer.started_at)
        text = first_part(buffer.text, bot.limits)
        wait = self._seconds_until_update(bot, buffer, draft, text)
        if wait > 0:
            return wait
        wait = await bot.rate_limiter.try_acquire(SendPriority.EDIT, address.destination)
        if wait > 0:
            return max(wait, _MIN_WAIT_SECONDS)
        await self._write(bot, address, draft, text)
        return self._update_interval

    def _seconds_until_update(self, bot: ConnectedBot, buffer: DraftBuffer, draft: Draft, text: str) -> float:
        """Return the seconds until the draft may show this text; what only grows is never made shorter."""
        now = self._clock()
        full = ChannelFeature.STREAM in bot.features and len(text) < len(buffer.text.rstrip())
        if draft.closed or (full and draft.shown):
            return _IDLE_SECONDS
        if text == draft.shown:
            return draft.due + REFRESH_SECONDS - now if draft.is_preview else _IDLE_SECONDS
        return max(buffer.message_started_at + self._draft_delay, draft.due) - now

    async def _send_typing(self, bot: ConnectedBot, address: Address, elapsed: float) -> float:
        if elapsed < self._typing_delay:
            return self._typing_delay - elapsed
        if ChannelFeature.TYPING not in bot.features:
            return _IDLE_SECONDS
        wait = await bot.rate_limiter.try_acquire(SendPriority.TYPING, address.destination)
        if wait > 0:
            return max(wait, _MIN_WAIT_SECONDS)
        await self._writer.send_typing(bot, address)
        return max(bot.limits.typing_seconds - 1.0, 1.0)

    async def _write(self, bot: ConnectedBot, address: Address, draft: Draft, text: str) -> None:
        """Make one call that brings the draft up to date."""
        async with draft.lock:
            draft.due = self._clock() + self._update_interval
            await self._writer.update(bot, address, draft, text)

    async def _close_draft(self, draft: Draft) -> None:
        """Make no more calls for a draft, and let whoever brings the final text know."""
        async with draft.lock:
            draft.closed = True
            unclaimed = self._drafts.pop((draft.message, draft.target), None) is draft
            if unclaimed and draft.announced:
                async with self._database.begin() as connection:
                    await draft_store.end_write(connection, draft.message, draft.target)

    async def claim(self, target: str, message: str) -> ClaimedDraft:
        """Take a message's draft over for its final text: after this no call for it is made, anywhere.

        Says where the draft shows, or how long to wait for a writer in another process.
        """
        draft = self._drafts.pop((message, target), None)
        if draft is not None:
            async with draft.lock:
                draft.closed = True
        now = utc_now()
        async with self._database.read() as connection:
            shown = await draft_store.get(connection, message, target)
        if shown is None:
            return ClaimedDraft()
        if draft is None and is_being_written(shown, now):
            return ClaimedDraft(wait=_MIN_WAIT_SECONDS)
        async with self._database.begin() as connection:
            return ClaimedDraft(platform_id=await draft_store.claim(connection, message, target, now=now))

    async def claim_unfinished(self, target: str, turn: str, delivery: str) -> ClaimedDraft:
        """Take over what a turn that ended early has left in a chat, and let nothing of it begin any more.

        Repeating it for the same delivery says the same again.
        """
        async with AsyncExitStack() as locks:
            ours = [draft for draft in self._drafts.values() if (draft.turn, draft.target) == (turn, target)]
            for draft in ours:
                await locks.enter_async_context(draft.lock)
                draft.closed = True
                self._drafts.pop((draft.message, target), None)
            return await self._claim_rows(target, turn, delivery, here={draft.message for draft in ours})

    async def _claim_rows(self, target: str, turn: str, delivery: str, *, here: set[str]) -> ClaimedDraft:
        now = utc_now()
        async with self._database.begin() as connection:
            await draft_store.end_turn(connection, turn, target, by=delivery, now=now)
            left = await draft_store.list_unclaimed(connection, turn, target, by=delivery)
            if any(is_being_written(shown, now) for message, shown in left.items() if message not in here):
                return ClaimedDraft(wait=_MIN_WAIT_SECONDS)
            await draft_store.claim_all(connection, left, target, by=delivery, now=now)
        newest = next(iter(left.values()), None)
        return (
            ClaimedDraft()
            if newest is None
            else ClaimedDraft(platform_id=newest.platform_id, shown=newest.text)
        )


def is_being_written(shown: DraftRow, now: datetime) -> bool:
    """Tell whether a writer may be amid a call; a promise from too far ahead is another clock's."""
    if shown.busy_until is None:
        return False
    return now < shown.busy_until <= now + timedelta(seconds=2 * WRITE_SECONDS)
