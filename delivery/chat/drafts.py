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
from channels.port import Feature
from delivery.chat import draft_store
from delivery.chat.draft_store import Shown
from delivery.chat.draft_writer import CALL_SECONDS, Draft, Pencil, beginning
from delivery.chat.rate_limit import Use
from delivery.chat.sink import Bot, Claimed, Find
from delivery.database.clock import utc_now
from delivery.database.engine import Database, Unavailable
from delivery.deliveries import routes as route_store
from delivery.deliveries.route import RouteKind

log = structlog.get_logger(__name__)

Heard = Callable[[str, str | None], None]
"""Take the whole of a message (its id and text) so far; None: the message is complete. Never waits."""

KEPT = timedelta(days=3)
REFRESHED = 20.0
"""Seconds after which a preview that has not changed is shown again: Telegram lets one fade after 30."""

_LONG = 3600.0
_LEAST = 0.2


@dataclass(slots=True, kw_only=True)
class Board:
    """What an agent is saying in a conversation; presenters read it, nobody waits for them."""

    begun: float
    turn: str = ""
    asker: str = ""
    message: str = ""
    text: str = ""
    since: float = 0.0
    over: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, message: str, text: str | None, now: float) -> None:
        """Replace what stands here; None wipes it."""
        if message != self.message:
            self.since = now
        self.message, self.text = ("", "") if text is None else (message, text)
        self.changed.set()

    def close(self) -> None:
        """The agent has ended."""
        self.over = True
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
        find: Find,
        database: Database,
        after: float = 1.0,
        typing_after: float = 0.5,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._database = database
        self._pencil = Pencil(database)
        self._after = after
        self._typing_after = typing_after
        self._every = every
        self._clock = clock
        self._group: asyncio.TaskGroup | None = None
        self.started = asyncio.Event()
        self._live: dict[int, Board] = {}
        self._open: dict[tuple[str, str], Draft] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Own the presenters until stopped; what shows then is left for the final texts."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.started.set()
            while not stop.is_set():
                await self._forget()
                try:
                    async with asyncio.timeout(_LONG):
                        await stop.wait()
                except TimeoutError:
                    continue
            self._group = None
            for board in self._live.values():
                board.close()

    async def _forget(self) -> None:
        try:
            async with self._database.begin() as connection:
                await draft_store.forget(connection, before=utc_now() - KEPT)
        except Unavailable as error:
            log.warning("draft.not_forgotten", error=str(error))

    @asynccontextmanager
    async def show(self, conversation: str, turn: str = "", asker: str = "") -> AsyncIterator[Heard | None]:
        """Yield who to tell what is said in a turn of a conversation; None when no chat listens.

        `asker` is the platform's id of the person whom the turn answers.
        """
        targets = await self._chats(conversation) if self._group is not None else []
        if not targets or self._group is None:
            yield None
            return
        board = Board(begun=self._clock(), turn=turn, asker=asker)
        self._live[id(board)] = board
        for target in targets:
            self._group.create_task(self._present(board, target))
        try:
            yield lambda message, text: board.write(message, text, self._clock())
        finally:
            del self._live[id(board)]
            board.close()

    async def _chats(self, conversation: str) -> list[str]:
        try:
            async with self._database.read() as connection:
                routes = await route_store.routes_for(connection, conversation, None)
        except Unavailable:
            return []
        return [route.target for route in routes if route.kind is RouteKind.CHAT]

    async def _present(self, board: Board, target: str) -> None:
        """Follow a board in one chat, until the agent has ended."""
        address = Address.load(target)
        last: Draft | None = None
        try:
            while not board.over:
                if last is not None and last.message != board.message:
                    await self._rest(last)
                if board.message:
                    fresh = Draft(message=board.message, target=target, turn=board.turn, asker=board.asker)
                    last = self._open.setdefault((board.message, target), fresh)
                await board.wait(await self._step(board, address, last))
        except Unavailable as error:
            log.warning("draft.interrupted", error=str(error))
        except Exception:  # the outermost loop of a presenter: a draft is a nicety and may harm nobody
            log.exception("draft.failed")
        finally:
            if last is not None:
                await self._rest(last)

    async def _step(self, board: Board, address: Address, draft: Draft | None) -> float:
        """Do what can be done now; return how many seconds there is nothing more to do."""
        bot = self._find(address.channel)
        if bot is None:
            return _LONG
        shows = {Feature.EDIT, Feature.STREAM} & bot.features
        if draft is None or not board.text.strip() or not shows:
            return await self._type(bot, address, self._clock() - board.begun)
        text = beginning(board.text, bot.limits)
        wait = self._pause(bot, board, draft, text)
        if wait > 0:
            return wait
        wait = await bot.budget.ask(Use.EDIT, address.destination)
        if wait > 0:
            return max(wait, _LEAST)
        await self._speak(bot, address, draft, text)
        return self._every

    def _pause(self, bot: Bot, board: Board, draft: Draft, text: str) -> float:
        """Return the seconds until the draft may show this text; what only grows is never made shorter."""
        now = self._clock()
        full = Feature.STREAM in bot.features and len(text) < len(board.text.rstrip())
        if draft.closed or (full and draft.shown):
            return _LONG
        if text == draft.shown:
            return draft.due + REFRESHED - now if draft.is_preview else _LONG
        return max(board.since + self._after, draft.due) - now

    async def _type(self, bot: Bot, address: Address, elapsed: float) -> float:
        if elapsed < self._typing_after:
            return self._typing_after - elapsed
        if Feature.TYPING not in bot.features:
            return _LONG
        wait = await bot.budget.ask(Use.TYPING, address.destination)
        if wait > 0:
            return max(wait, _LEAST)
        await self._pencil.type(bot, address)
        return max(bot.limits.typing_seconds - 1.0, 1.0)

    async def _speak(self, bot: Bot, address: Address, draft: Draft, text: str) -> None:
        """Make one call that brings the draft up to date."""
        async with draft.lock:
            draft.due = self._clock() + self._every
            await self._pencil.draw(bot, address, draft, text)

    async def _rest(self, draft: Draft) -> None:
        """Make no more calls for a draft, and let whoever brings the final text know."""
        async with draft.lock:
            draft.closed = True
            unclaimed = self._open.pop((draft.message, draft.target), None) is draft
            if unclaimed and draft.announced:
                async with self._database.begin() as connection:
                    await draft_store.rest(connection, draft.message, draft.target)

    async def claim(self, target: str, message: str) -> Claimed:
        """Take a message's draft over for its final text: after this no call for it is made, anywhere.

        Says where the draft shows, or how long to wait for a writer in another process.
        """
        draft = self._open.pop((message, target), None)
        if draft is not None:
            async with draft.lock:
                draft.closed = True
        now = utc_now()
        async with self._database.read() as connection:
            shown = await draft_store.find(connection, message, target)
        if shown is None:
            return Claimed()
        if draft is None and is_busy(shown, now):
            return Claimed(wait=_LEAST)
        async with self._database.begin() as connection:
            return Claimed(platform_id=await draft_store.claim(connection, message, target, now=now))

    async def claim_rest(self, target: str, turn: str, delivery: str) -> Claimed:
        """Take over what a turn that ended early has left in a chat, and let nothing of it begin any more.

        Repeating it for the same delivery says the same again.
        """
        async with AsyncExitStack() as locks:
            ours = [draft for draft in self._open.values() if (draft.turn, draft.target) == (turn, target)]
            for draft in ours:
                await locks.enter_async_context(draft.lock)
                draft.closed = True
                self._open.pop((draft.message, target), None)
            return await self._end(target, turn, delivery, here={draft.message for draft in ours})

    async def _end(self, target: str, turn: str, delivery: str, *, here: set[str]) -> Claimed:
        now = utc_now()
        async with self._database.begin() as connection:
            await draft_store.end_turn(connection, turn, target, by=delivery, now=now)
            left = await draft_store.left_by(connection, turn, target, by=delivery)
            if any(is_busy(shown, now) for message, shown in left.items() if message not in here):
                return Claimed(wait=_LEAST)
            await draft_store.claim_left(connection, left, target, by=delivery, now=now)
        newest = next(iter(left.values()), None)
        return Claimed() if newest is None else Claimed(platform_id=newest.platform_id, shown=newest.text)


def is_busy(shown: Shown, now: datetime) -> bool:
    """Tell whether a writer may be amid a call; a promise from too far ahead is another clock's."""
    if shown.busy_until is None:
        return False
    return now < shown.busy_until <= now + timedelta(seconds=2 * CALL_SECONDS)
