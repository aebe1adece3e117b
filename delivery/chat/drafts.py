"""Drafts: show a reply in its chat while it is still being generated.

    text so far ──► DraftBuffer (latest text only) ──► one task per chat ──► DraftWriter: one call
                                                        │  within the rate limit, without the reserve
    complete ──► the delivery ──► claim ──► edit to the final text (or a plain send, without a draft)
    ended early ──► the delivery of the end ──► claim_unfinished ──► edit to the text so far and the end

A turn never waits for a draft: it writes to a buffer, and a task for each chat reads the buffer when the rate
limit allows. A message that is complete within a second has no draft. A draft's platform id is stored in a
row, so that a repeated turn, another replica and a delivery after a crash find it. The row also holds until
when a write may be in progress, so that no late edit can overwrite the final text. The first call of a draft
may be answered late: its id is waited for. If the answer is lost, the final text looks the message up by its
key, on platforms with the feature FIND, and edits it. A preview, which the
platform hides by itself, is refreshed before that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from channels.message import Address, ToolStep
from channels.port import ChannelFeature
from delivery.background import log_errors
from delivery.chat import draft_store
from delivery.chat.claimed_drafts import ClaimedDraft
from delivery.chat.draft_store import DraftRow
from delivery.chat.draft_writer import WRITE_SECONDS, Draft, DraftWriter, draft_key, first_part
from delivery.chat.rate_limit import SendPriority
from delivery.chat.sink import ConnectedBot, GetBot
from delivery.chat.step_messages import (
    WAIT_SECONDS,
    GetEndedTurns,
    GetVerbosity,
    StepBuffer,
    StepMessages,
    default_verbosity,
    no_ended_turns,
)
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database, DatabaseUnavailable
from delivery.deliveries import routes as route_store
from delivery.deliveries.port import Delivery
from delivery.deliveries.route import RouteKind

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDisplay:
    """What an attempt at a turn shows in its chats; neither call ever waits."""

    show_text: Callable[[str, str | None], None]
    """Receive a message's id and its text so far; None: the message is complete."""

    show_step: Callable[[ToolStep], None]
    """Receive a tool call that began or ended."""


RETENTION = timedelta(days=3)
REFRESH_SECONDS = 20.0
"""Seconds after which an unchanged preview is refreshed: Telegram hides one after 30."""

_IDLE_SECONDS = 3600.0
_MIN_WAIT_SECONDS = 0.2


@dataclass(slots=True, kw_only=True)
class DraftBuffer:
    """The message that an agent is generating in a conversation; one task per chat reads it."""

    started_at: float
    conversation: str
    turn: str = ""
    asker: str = ""
    message: str = ""
    text: str = ""
    message_started_at: float = 0.0
    closed: bool = False
    steps: StepBuffer | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, message: str, text: str | None, now: float) -> None:
        """Replace the text of the current message; None clears it."""
        if message != self.message:
            self.message_started_at = now
        self.message, self.text = ("", "") if text is None else (message, text)
        self.changed.set()

    def close(self) -> None:
        """Mark the turn as ended."""
        self.closed = True
        if self.steps is not None:
            self.steps.close()
        self.changed.set()

    async def wait(self, seconds: float) -> None:
        """Wait for a change, up to `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return
        self.changed.clear()


class Drafts:
    """Shows drafts in chats; `draft_delay`: the seconds after which an incomplete message gets a draft.

    `step_delay`: the seconds after a turn's first tool call when its tool calls are shown. `wait_delay`: the
    seconds of a wait after which it is shown without them. `abandoned_delay`: the seconds after the start
    when the step messages of a killed process are ended.
    """

    def __init__(
        self,
        *,
        get_bot: GetBot,
        database: Database,
        draft_delay: float = 1.0,
        typing_delay: float = 0.5,
        update_interval: float = 1.0,
        write_seconds: float = WRITE_SECONDS,
        step_delay: float = 2.0,
        wait_delay: float = WAIT_SECONDS,
        abandoned_delay: float = 20.0,
        get_verbosity: GetVerbosity = default_verbosity,
        get_ended_turns: GetEndedTurns = no_ended_turns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._get_bot = get_bot
        self._database = database
        self._writer = DraftWriter(database, write_seconds=write_seconds)
        self._step_messages = StepMessages(
            get_bot=get_bot,
            database=database,
            writer=self._writer,
            delay=step_delay,
            wait_delay=wait_delay,
            update_interval=update_interval,
            get_verbosity=get_verbosity,
            get_ended_turns=get_ended_turns,
        )
        self._draft_delay = draft_delay
        self._typing_delay = typing_delay
        self._update_interval = update_interval
        self._abandoned_delay = abandoned_delay
        self._clock = clock
        self._group: asyncio.TaskGroup | None = None
        self.started = asyncio.Event()
        self._buffers: dict[int, DraftBuffer] = {}
        self._drafts: dict[tuple[str, str], Draft] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Own the tasks of all drafts until `stop`; the visible drafts are left for their final texts."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.started.set()
            group.create_task(self._end_abandoned_steps(stop))
            while not stop.is_set():
                await self._delete_old()
                try:
                    async with asyncio.timeout(_IDLE_SECONDS):
                        await stop.wait()
                except TimeoutError:
                    continue
            self._group = None
            self._writer.hurry()
            for buffer in self._buffers.values():
                buffer.close()

    async def _end_abandoned_steps(self, stop: asyncio.Event) -> None:
        """End the step messages of killed processes, once the bots are connected."""
        started_at = utc_now()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._abandoned_delay):
                await stop.wait()
        if not stop.is_set():
            with log_errors("drafts.abandoned_steps"):
                await self._step_messages.end_abandoned(started_at)

    async def _delete_old(self) -> None:
        with log_errors("drafts.cleanup"):
            async with self._database.begin() as connection:
                await draft_store.delete_before(connection, before=utc_now() - RETENTION)

    @asynccontextmanager
    async def publish_while(
        self, conversation: str, turn: str = "", asker: str = ""
    ) -> AsyncIterator[TurnDisplay | None]:
        """Yield what shows a turn's texts and tool calls in its chats; None while drafts do not run.

        `asker` is the platform's id of the person to whom the turn replies.
        """
        if self._group is None:
            yield None
            return
        buffer = DraftBuffer(started_at=self._clock(), conversation=conversation, turn=turn, asker=asker)
        self._buffers[id(buffer)] = buffer
        quiet = min(self._draft_delay, self._typing_delay)
        starting = asyncio.get_running_loop().call_later(quiet, self._start_showing, buffer)
        try:
            yield TurnDisplay(
                show_text=lambda message, text: buffer.write(message, text, self._clock()),
                show_step=partial(self._show_step, buffer),
            )
        finally:
            starting.cancel()
            del self._buffers[id(buffer)]
            buffer.close()

    def _start_showing(self, buffer: DraftBuffer) -> None:
        """Show the turn's texts; a turn that ends before there is something to show needs no task."""
        if self._group is not None and not buffer.closed:
            self._group.create_task(self._show_in_chats(buffer, partial(self._update_chat, buffer)))

    def _show_step(self, buffer: DraftBuffer, step: ToolStep) -> None:
        """Show a step; a turn's first one starts the tasks."""
        if self._group is None or buffer.closed:
            return
        if buffer.steps is None:
            buffer.steps = StepBuffer(turn=buffer.turn, asker=buffer.asker)
            show = partial(self._show_steps, buffer.steps)
            self._group.create_task(self._show_in_chats(buffer, show))
        buffer.steps.write(step)

    async def _show_in_chats(
        self, buffer: DraftBuffer, show: Callable[[str], Coroutine[None, None, None]]
    ) -> None:
        """Show something in all chats of the conversation, each in a task of its own."""
        with log_errors("draft.chats", turn=buffer.turn):
            async with asyncio.TaskGroup() as group:
                for target in await self._chat_targets(buffer.conversation):
                    group.create_task(show(target))

    async def _show_steps(self, steps: StepBuffer, target: str) -> None:
        with log_errors("draft.steps", turn=steps.turn):
            await self._step_messages.show(steps, target)

    async def _chat_targets(self, conversation: str) -> list[str]:
        try:
            async with self._database.read() as connection:
                routes = await route_store.list_routes(connection, conversation, None)
        except DatabaseUnavailable:
            return []
        return [route.target for route in routes if route.kind is RouteKind.CHAT]

    async def _update_chat(self, buffer: DraftBuffer, target: str) -> None:
        """Show the buffer's messages in one chat until the turn has ended; errors are logged."""
        last: list[Draft] = []
        try:
            with log_errors("draft", turn=buffer.turn):
                await self._show_messages(buffer, target, last)
        finally:
            with log_errors("draft.close", turn=buffer.turn):
                for draft in last:
                    await self._close_draft(draft)

    async def _show_messages(self, buffer: DraftBuffer, target: str, last: list[Draft]) -> None:
        """Show one message after the other; `last` holds the draft of the latest one, for the caller."""
        address = Address.decode(target)
        while not buffer.closed:
            if last and last[0].message != buffer.message:
                await self._close_draft(last[0])
            if buffer.message:
                draft = Draft(message=buffer.message, target=target, turn=buffer.turn, asker=buffer.asker)
                last[:] = [self._drafts.setdefault((buffer.message, target), draft)]
            await buffer.wait(await self._update_once(buffer, address, last[0] if last else None))

    async def _update_once(self, buffer: DraftBuffer, address: Address, draft: Draft | None) -> float:
        """Make the call that is due, if any; return the seconds until the next one."""
        bot = self._get_bot(address.channel)
        if bot is None:
            return _IDLE_SECONDS
        can_show = {ChannelFeature.EDIT, ChannelFeature.STREAM} & bot.features
        if draft is None or not buffer.text.strip() or not can_show:
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
        """Return the seconds until the draft may show this text; a streamed text is never shortened."""
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
        """Make one call that updates the draft."""
        async with draft.lock:
            draft.due = self._clock() + self._update_interval
            await self._writer.update(bot, address, draft, text)

    async def _close_draft(self, draft: Draft) -> None:
        """Make no more calls for a draft, and record that none is in progress."""
        async with draft.lock:
            draft.closed = True
            unclaimed = self._drafts.pop((draft.message, draft.target), None) is draft
            if unclaimed and draft.announced:
                async with self._database.begin() as connection:
                    await draft_store.end_write(connection, draft.message, draft.target)

    async def claim(self, target: str, message: str) -> ClaimedDraft:
        """Claim a message's draft for its final text: afterwards no process makes a call for it.

        Returns the draft's platform id, or the seconds to wait for a writer in another process.
        """
        draft = self._drafts.pop((message, target), None)
        if draft is not None:
            async with draft.lock:
                draft.closed = True
        now = utc_now()
        async with self._database.read() as connection:
            row = await draft_store.get(connection, message, target)
        if row is None:
            return ClaimedDraft()
        if draft is None and is_being_written(row, now):
            return ClaimedDraft(wait=_MIN_WAIT_SECONDS)
        async with self._database.begin() as connection:
            platform_id = await draft_store.claim(connection, message, target, now=now)
            return await _visible_draft(connection, message, target, replace(row, platform_id=platform_id))

    async def claim_unfinished(self, delivery: Delivery) -> ClaimedDraft:
        """Claim the drafts that a turn left in a chat when it ended early, and prevent new ones.

        Idempotent for the same delivery.
        """
        target, turn = delivery.target, delivery.turn or ""
        async with AsyncExitStack() as locks:
            ours = [draft for draft in self._drafts.values() if (draft.turn, draft.target) == (turn, target)]
            for draft in ours:
                await locks.enter_async_context(draft.lock)
                draft.closed = True
                self._drafts.pop((draft.message, target), None)
            return await self._claim_rows(delivery, turn, local={draft.message for draft in ours})

    async def _claim_rows(self, delivery: Delivery, turn: str, *, local: set[str]) -> ClaimedDraft:
        now, target, by = utc_now(), delivery.target, delivery.id
        async with self._database.begin() as connection:
            await draft_store.end_turn(connection, delivery.account, turn, target, by=by, now=now)
            rows = await draft_store.list_unclaimed(connection, turn, target, by=by)
            if any(is_being_written(row, now) for message, row in rows.items() if message not in local):
                return ClaimedDraft(wait=_MIN_WAIT_SECONDS)
            await draft_store.claim_all(connection, rows, target, by=by, now=now)
            message, newest = next(iter(rows.items()), ("", None))
            if newest is None:
                return ClaimedDraft()
            claimed = await _visible_draft(connection, message, target, newest)
            return replace(claimed, shown=newest.text)


async def _visible_draft(connection: Connection, message: str, target: str, row: DraftRow) -> ClaimedDraft:
    """Return where a claimed draft is visible, with its key if only that certainly names its message.

    The first call may be answered after the draft's room was moved, with the id that the message had before.
    """
    first = await draft_store.first_target(connection, message, target)
    if not row.is_unanswered and first == target:
        return ClaimedDraft(platform_id=row.platform_id)
    return ClaimedDraft(platform_id=row.platform_id, key=draft_key(message, first), since=row.created_at)


def is_being_written(row: DraftRow, now: datetime) -> bool:
    """Return whether a write may be in progress; a `busy_until` too far ahead is of another clock."""
    if row.busy_until is None:
        return False
    return now < row.busy_until <= now + timedelta(seconds=2 * WRITE_SECONDS)
