"""Show the tool calls of a turn in its chat while they run, in one message of their own.

    call begins or ends ──► StepBuffer ──► one task per chat ──► Sender.show_steps, within the rate limit
    the attempt ends ──► the last call, which ends the message

A turn whose calls end within the delay has none. The message's platform id is a row of drafts under the
turn's name, so that the next attempt continues the message. If it is unknown whether the first call arrived,
the turn shows no steps any more. A process that was killed may leave a message that has not ended, of a turn
that has: the next process ends it.

A platform with the feature STEPS shows them by calls of its own, unless the room does not want that. Where
the bot can edit and delete its messages, they are a message that is edited and at last deleted, if the room
wants that. A room that has not chosen gets such a message when the turn has waited for long, for example for
its sandbox; it shows the waits alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from channels.errors import RateLimited, Unreachable
from channels.message import Address, Reply, SentMessage, StepState, ToolStep, ToolSteps
from channels.port import ChannelFeature
from delivery.chat import draft_store
from delivery.chat.draft_store import DraftWrite
from delivery.chat.draft_writer import DraftWriter, draft_key
from delivery.chat.rate_limit import SendPriority
from delivery.chat.sink import ConnectedBot, GetBot
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.deliveries import destinations

MAX_STEPS = 40
"""Steps of one message; later ones are not shown."""

CALL_SECONDS = 20.0
WAIT_SECONDS = 15.0
"""Seconds after the first report of a wait when a room that shows no tool calls gets a message about it."""

MAX_FAILURES = 5
"""Calls that may fail one after the other before the message is left as it is."""

GetEndedTurns = Callable[[Sequence[str]], Awaitable[Collection[str]]]
"""Return which of these turns have ended."""

GetVerbosity = Callable[[Address], Awaitable[bool | None]]
"""Return whether a room wants to see tool calls; None: the platform's default."""


async def default_verbosity(_address: Address) -> bool | None:
    """Leave it to the platform."""
    return None


async def no_ended_turns(_turns: Sequence[str]) -> Collection[str]:
    """Take every turn for one that may go on."""
    return ()


@dataclass(slots=True, kw_only=True)
class StepBuffer:
    """The tool calls of one attempt at a turn, in order."""

    turn: str
    asker: str = ""
    steps: dict[str, ToolStep] = field(default_factory=dict)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a wait was written, and when the attempt has ended."""

    @property
    def waits(self) -> tuple[ToolStep, ...]:
        """Return the steps that are waits."""
        return tuple(step for step in self.steps.values() if step.is_wait)

    def write(self, step: ToolStep) -> None:
        """Add a step, or replace it by its new state."""
        if step.is_wait or step.id in self.steps or len(self.steps) < MAX_STEPS:
            self.steps[step.id] = step
        if step.is_wait:
            self.changed.set()

    def close(self) -> None:
        """Mark the attempt as ended."""
        self.closed.set()
        self.changed.set()

    async def wait_for_long_wait(self, seconds: float) -> None:
        """Return once a wait has run for about so long, or the attempt has ended."""
        while not self.closed.is_set():
            await self.changed.wait()
            self.changed.clear()
            await self.wait_closed(seconds)
            if any(wait.state is StepState.RUNNING for wait in self.waits):
                return

    async def wait_closed(self, seconds: float) -> bool:
        """Wait until the attempt has ended, up to `seconds`; return whether it has."""
        try:
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        except TimeoutError:
            return False
        return True


class StepMessages:
    """Shows the steps of turns; `delay`: the seconds after the first call when its steps are shown.

    `wait_delay`: the seconds of a wait after which it is shown in a room that shows no tool calls.
    """

    def __init__(
        self,
        *,
        get_bot: GetBot,
        database: Database,
        writer: DraftWriter,
        delay: float,
        wait_delay: float,
        update_interval: float,
        get_verbosity: GetVerbosity = default_verbosity,
        get_ended_turns: GetEndedTurns = no_ended_turns,
    ) -> None:
        self._get_ended_turns = get_ended_turns
        self._get_verbosity = get_verbosity
        self._get_bot = get_bot
        self._database = database
        self._writer = writer
        self._delay = delay
        self._wait_delay = wait_delay
        self._update_interval = update_interval

    async def show(self, buffer: StepBuffer, target: str) -> None:
        """Show an attempt's steps in a chat until it has ended."""
        address = Address.decode(target)
        bot = self._get_bot(address.channel)
        if bot is None or await buffer.wait_closed(self._delay):
            return
        shows_calls = await self._shows_calls(bot, address)
        if shows_calls is None:
            await buffer.wait_for_long_wait(self._wait_delay)
        if shows_calls is False or buffer.closed.is_set():
            return
        key = draft_key(draft_store.steps_row(buffer.turn), target)
        shown: ToolSteps | None = ToolSteps(key=key, steps=(), recipient_id=buffer.asker)
        failures = 0
        while shown is not None and failures < MAX_FAILURES:
            steps = tuple(buffer.steps.values()) if shows_calls else buffer.waits
            address = await self._current_address(buffer, address) if failures else address
            if steps != shown.steps or buffer.closed.is_set():
                wanted = replace(shown, steps=steps, has_ended=buffer.closed.is_set())
                shown = await self._update(bot, address, buffer, wanted)
            if shown is None or shown.has_ended:
                return
            failures = 0 if shown.steps else failures + 1
            if buffer.closed.is_set():
                await asyncio.sleep(self._update_interval)
            await buffer.wait_closed(self._update_interval)

    async def end_abandoned(self, before: datetime) -> None:
        """End the messages from before a moment whose turns have ended; one call for each."""
        async with self._database.read() as connection:
            running = await draft_store.list_running_steps(connection, before=before)
        ended_turns = await self._get_ended_turns([one.turn for one in running])
        for one in running:
            if one.turn not in ended_turns:
                continue
            address = Address.decode(one.target)
            bot = self._get_bot(address.channel)
            if bot is not None:
                key = draft_key(draft_store.steps_row(one.turn), one.target)
                ended = ToolSteps(key=key, steps=(), platform_id=one.platform_id, has_ended=True)
                await self._update(bot, address, StepBuffer(turn=one.turn), ended)

    async def _current_address(self, buffer: StepBuffer, address: Address) -> Address:
        """Return the address of the message, whose room may have got a new id."""
        row, target = draft_store.steps_row(buffer.turn), address.encode()
        async with self._database.read() as connection:
            return Address.decode(await draft_store.current_target(connection, row, target))

    async def _shows_calls(self, bot: ConnectedBot, address: Address) -> bool | None:
        """Return whether the room shows tool calls; None: long waits alone, False: neither."""
        verbosity = await self._get_verbosity(address)
        if ChannelFeature.STEPS in bot.features:
            return verbosity is not False
        return verbosity if bot.features >= _STATUS_LINE else False

    async def _update(
        self, bot: ConnectedBot, address: Address, buffer: StepBuffer, steps: ToolSteps
    ) -> ToolSteps | None:
        """Make one call; return what is shown now, or None if no more calls may be made.

        Steps without any are returned when the call failed and may be repeated.
        """
        await _wait_for_rate_limit(bot, address)
        target = address.encode()
        if steps.platform_id is None:
            platform_id = await self._begin(bot, address, buffer, target)
            if platform_id is None:
                return None
            steps = replace(steps, platform_id=platform_id or None)
        sent: list[SentMessage | None] = []

        async def call() -> None:
            sent.append(await _show(bot, address, steps))

        error = await self._writer.attempt(bot, address, call(), asyncio.timeout(CALL_SECONDS))
        may_repeat = isinstance(error, RateLimited | Unreachable)
        if error is not None and not may_repeat:
            may_repeat = await self._current_address(buffer, address) != address
        if may_repeat and steps.platform_id is not None:
            return replace(steps, steps=(), has_ended=False)
        return await self._record(buffer, target, steps, sent[0]) if sent else None

    async def _record(
        self, buffer: StepBuffer, target: str, steps: ToolSteps, sent: SentMessage | None
    ) -> ToolSteps | None:
        """Record the message's id for the next attempt; without a message nothing more is shown."""
        row = draft_store.steps_row(buffer.turn)
        if sent is None and steps.has_ended:
            async with self._database.begin() as connection:
                await draft_store.delete_draft(connection, row, target)
        elif sent is not None and steps.has_ended:
            async with self._database.begin() as connection:
                await draft_store.set_steps_state(connection, buffer.turn, target, draft_store.STEPS_ENDED)
        elif sent is not None and steps.platform_id is None:
            async with self._database.begin() as connection:
                await draft_store.set_platform_id(connection, row, target, sent.platform_id)
        return None if sent is None else replace(steps, platform_id=sent.platform_id)

    async def _begin(
        self, bot: ConnectedBot, address: Address, buffer: StepBuffer, target: str
    ) -> str | None:
        """Record that the message begins; return the one of an earlier attempt, "" or None: show none."""
        now, row = utc_now(), draft_store.steps_row(buffer.turn)
        async with self._database.begin() as connection:
            destination = address.destination
            state = await destinations.get_state(connection, destination, bot=bot.bot_destination(address))
            if state.dead_reason is not None or state.remaining_pause(now) > 0:
                return None
            earlier = await draft_store.get(connection, row, target)
            if earlier is not None:
                await draft_store.set_steps_state(connection, buffer.turn, target, draft_store.STEPS_RUNNING)
                return earlier.platform_id
            write = DraftWrite(
                account=bot.account,
                message=row,
                target=target,
                turn="",
                text=draft_store.STEPS_RUNNING,
                now=now,
                busy_until=now + timedelta(seconds=CALL_SECONDS),
            )
            await draft_store.begin_write(connection, write)
        return ""


_STATUS_LINE = frozenset({ChannelFeature.EDIT, ChannelFeature.DELETE})


async def _wait_for_rate_limit(bot: ConnectedBot, address: Address) -> None:
    wait = await bot.rate_limiter.try_acquire(SendPriority.EDIT, address.destination)
    while wait > 0:
        await asyncio.sleep(wait)
        wait = await bot.rate_limiter.try_acquire(SendPriority.EDIT, address.destination)


async def _show(bot: ConnectedBot, address: Address, steps: ToolSteps) -> SentMessage | None:
    """Show steps by the platform's own calls, or as a message that ends by being deleted."""
    if ChannelFeature.STEPS in bot.features:
        return await bot.sender.show_steps(address, steps)
    if steps.has_ended:
        if steps.platform_id is not None:
            await bot.sender.delete(address, steps.platform_id)
        return None
    reply = Reply(text=steps.text, key=steps.key)
    if steps.platform_id is None:
        return await bot.sender.send(address, reply)
    return await bot.sender.edit(address, steps.platform_id, reply)
