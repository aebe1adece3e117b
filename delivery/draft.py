"""Drafts: a reply that shows in its chat while it is still being said, by a placeholder and edits.

    said ──► board (the latest text only) ──► presenter, one a chat ──► send once, then edit
                                                   │  within the budget that leaves final texts their reserve
    complete ──► the delivery ──► claim ──► edit to the final text (or a plain send, when nothing shows)

The turn is never held up: it writes on a board, and presenters look at it when the budget lets them. A
message said in less than a second has no draft at all. Where a draft shows is a row, so that a repeated
turn, another replica and a delivery after a crash find it; the row also says how long its writer may be in
the middle of a call, so that no late edit can overwrite the final text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog

from channels.errors import ChannelError, RateLimited
from channels.markup import split
from channels.message import Address, Reply
from channels.port import Feature, Limits
from delivery import draft_store, store
from delivery.budget import Use
from delivery.database import Database, Unavailable
from delivery.route import RouteKind
from delivery.sinks.chat import Bot, Claimed, Find, reply_key

log = structlog.get_logger(__name__)

Heard = Callable[[str, str | None], None]
"""Take the whole of a message (its id and text) so far; None: the message is complete. Never waits."""

CALL_SECONDS = 3.0
"""How long one call for a draft may take; also how long a dead writer holds up the final text at the most."""

KEPT = timedelta(days=3)
_UNFINISHED = " …"
_LONG = 3600.0
_LEAST = 0.2


@dataclass(slots=True, kw_only=True)
class Draft:
    """One message as it shows in one chat; calls are made under the lock."""

    message: str
    target: str
    shown: str = ""
    platform_id: str | None = None
    announced: bool = False
    closed: bool = False
    due: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True, kw_only=True)
class Board:
    """What an agent is saying in a conversation; presenters read it, nobody waits for them."""

    begun: float
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
                await draft_store.forget(connection, before=datetime.now(UTC) - KEPT)
        except Unavailable as error:
            log.warning("draft.not_forgotten", error=str(error))

    @asynccontextmanager
    async def show(self, conversation: str) -> AsyncIterator[Heard | None]:
        """Yield who to tell what is being said in a conversation; None when no chat listens."""
        targets = await self._chats(conversation) if self._group is not None else []
        if not targets or self._group is None:
            yield None
            return
        board = Board(begun=self._clock())
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
                routes = await store.routes_for(connection, conversation, None)
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
                    last = self._open.setdefault(
                        (board.message, target), Draft(message=board.message, target=target)
                    )
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
        if draft is None or not board.text.strip() or Feature.EDIT not in bot.features:
            return await self._type(bot, address, self._clock() - board.begun)
        text = fitting(board.text, bot.limits)
        if draft.closed or text == draft.shown:
            return _LONG
        wait = max(board.since + self._after, draft.due) - self._clock()
        if wait > 0:
            return wait
        if not bot.budget.try_take(Use.EDIT, address.destination):
            return max(bot.budget.wait(Use.EDIT, address.destination), _LEAST)
        await self._speak(bot, address, draft, text)
        return self._every

    async def _type(self, bot: Bot, address: Address, elapsed: float) -> float:
        if elapsed < self._typing_after:
            return self._typing_after - elapsed
        if Feature.TYPING not in bot.features:
            return _LONG
        if not bot.budget.try_take(Use.TYPING, address.destination):
            return max(bot.budget.wait(Use.TYPING, address.destination), _LEAST)
        await _attempt(bot, address, bot.channel.typing(address))
        return max(bot.limits.typing_seconds - 1.0, 1.0)

    async def _speak(self, bot: Bot, address: Address, draft: Draft, text: str) -> None:
        """Make one call that brings the draft up to date, unless the final text has claimed it."""
        async with draft.lock:
            draft.due = self._clock() + self._every
            if draft.closed or not await self._announce(draft):
                draft.closed = True
                return
            reply = Reply(text=text, key=reply_key(f"{draft.message} {draft.target}"))
            if draft.platform_id is None:
                # A first call that fails may show somewhere or not: the final text is then sent afresh.
                draft.closed = not await _attempt(bot, address, self._place(bot, address, draft, reply))
            else:
                await _attempt(bot, address, bot.channel.edit(address, draft.platform_id, reply))
            draft.shown = text

    async def _announce(self, draft: Draft) -> bool:
        """Write down that a call is under way; False when the final text has claimed the draft."""
        now = datetime.now(UTC)
        async with self._database.begin() as connection:
            shown = await draft_store.take_up(
                connection,
                draft.message,
                draft.target,
                now=now,
                busy_until=now + timedelta(seconds=CALL_SECONDS),
            )
        draft.announced = True
        draft.platform_id = shown.platform_id if shown is not None else None
        return shown is not None

    async def _place(self, bot: Bot, address: Address, draft: Draft, reply: Reply) -> None:
        draft.platform_id = (await bot.channel.send(address, reply)).platform_id
        async with self._database.begin() as connection:
            await draft_store.keep(connection, draft.message, draft.target, draft.platform_id)

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
        now = datetime.now(UTC)
        async with self._database.read() as connection:
            shown = await draft_store.find(connection, message, target)
        if shown is None:
            return Claimed()
        if draft is None and is_busy(shown, now):
            return Claimed(wait=_LEAST)
        async with self._database.begin() as connection:
            return Claimed(platform_id=await draft_store.claim(connection, message, target, now=now))


def is_busy(shown: draft_store.Shown, now: datetime) -> bool:
    """Tell whether a writer may be amid a call; a promise from too far ahead is another clock's."""
    if shown.busy_until is None:
        return False
    return now < shown.busy_until <= now + timedelta(seconds=2 * CALL_SECONDS)


def fitting(text: str, limits: Limits) -> str:
    """Return what a draft shows of a text: all of it and a sign that more comes, or the first part."""
    unfinished = text.rstrip() + _UNFINISHED
    if limits.measure(unfinished) <= limits.text:
        return unfinished
    return split(text, limits.text, limits.measure)[0]


async def _attempt(bot: Bot, address: Address, call: Awaitable[object]) -> bool:
    """Make a call of little importance; says whether it succeeded."""
    try:
        async with asyncio.timeout(CALL_SECONDS):
            await call
    except RateLimited as error:
        bot.budget.hold(error.retry_after, room=address.destination if error.scope == "room" else None)
    except (ChannelError, TimeoutError) as error:
        log.info("draft.not_shown", channel=address.channel, error=str(error))
    else:
        return True
    return False
