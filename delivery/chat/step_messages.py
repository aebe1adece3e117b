"""Show the tool calls of a turn in its chat while they run, in one message of their own.

    call begins or ends ──► StepBuffer ──► one task per chat ──► Sender.show_steps, within the rate limit
    the attempt ends ──► the last call, which ends the message

Only platforms with the feature STEPS have such a message. A turn whose calls end within the delay has none.
The message's platform id is a row of drafts under the turn's name, so that the next attempt continues the
message. If it is unknown whether the first call arrived, the turn shows no steps any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta

from channels.message import Address, SentMessage, ToolStep, ToolSteps
from channels.port import ChannelFeature
from delivery.chat import draft_store
from delivery.chat.draft_store import DraftWrite
from delivery.chat.draft_writer import DraftWriter, draft_key
from delivery.chat.rate_limit import SendPriority
from delivery.chat.sink import ConnectedBot, GetBot
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.deliveries import destinations
from delivery.deliveries.route import bot_destination

MAX_STEPS = 40
"""Steps of one message; later ones are not shown."""

CALL_SECONDS = 20.0
_ROW_TEXT = "steps"


@dataclass(slots=True, kw_only=True)
class StepBuffer:
    """The tool calls of one attempt at a turn, in order."""

    turn: str
    asker: str = ""
    steps: dict[str, ToolStep] = field(default_factory=dict)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, step: ToolStep) -> None:
        """Add a step, or replace it by its new state."""
        if step.id in self.steps or len(self.steps) < MAX_STEPS:
            self.steps[step.id] = step

    async def wait_closed(self, seconds: float) -> bool:
        """Wait until the attempt has ended, up to `seconds`; return whether it has."""
        try:
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        except TimeoutError:
            return False
        return True


class StepMessages:
    """Shows the steps of turns; `delay`: the seconds after the first call when its steps are shown."""

    def __init__(
        self,
        *,
        get_bot: GetBot,
        database: Database,
        writer: DraftWriter,
        delay: float,
        update_interval: float,
    ) -> None:
        self._get_bot = get_bot
        self._database = database
        self._writer = writer
        self._delay = delay
        self._update_interval = update_interval

    async def show(self, buffer: StepBuffer, target: str) -> None:
        """Show an attempt's steps in a chat until it has ended."""
        address = Address.decode(target)
        bot = self._get_bot(address.channel)
        if bot is None or ChannelFeature.STEPS not in bot.features or await buffer.wait_closed(self._delay):
            return
        key = draft_key(_row_name(buffer), target)
        shown: ToolSteps | None = ToolSteps(key=key, steps=(), recipient_id=buffer.asker)
        while shown is not None:
            steps = tuple(buffer.steps.values())
            if steps != shown.steps or buffer.closed.is_set():
                shown = await self._update(
                    bot, address, buffer, replace(shown, steps=steps, has_ended=buffer.closed.is_set())
                )
            if shown is None or shown.has_ended:
                return
            await buffer.wait_closed(self._update_interval)

    async def _update(
        self, bot: ConnectedBot, address: Address, buffer: StepBuffer, steps: ToolSteps
    ) -> ToolSteps | None:
        """Make one call; return what is shown now, or None if no more calls may be made."""
        wait = await bot.rate_limiter.try_acquire(SendPriority.EDIT, address.destination)
        while wait > 0:
            await asyncio.sleep(wait)
            wait = await bot.rate_limiter.try_acquire(SendPriority.EDIT, address.destination)
        target = address.encode()
        if steps.platform_id is None:
            platform_id = await self._begin(address, buffer, target)
            if platform_id is None:
                return None
            steps = replace(steps, platform_id=platform_id or None)
        sent: list[SentMessage | None] = []

        async def call() -> None:
            sent.append(await bot.sender.show_steps(address, steps))

        await self._writer.attempt(bot, address, call(), asyncio.timeout(CALL_SECONDS))
        if not sent or sent[0] is None:
            return None
        if steps.platform_id is None:
            async with self._database.begin() as connection:
                row = _row_name(buffer)
                await draft_store.set_platform_id(connection, row, target, sent[0].platform_id)
        return replace(steps, platform_id=sent[0].platform_id)

    async def _begin(self, address: Address, buffer: StepBuffer, target: str) -> str | None:
        """Record that the message begins; return the one of an earlier attempt, "" or None: show none."""
        now, row = utc_now(), _row_name(buffer)
        async with self._database.begin() as connection:
            destination = address.destination
            state = await destinations.get_state(connection, destination, bot=bot_destination(destination))
            if state.dead_reason is not None or state.remaining_pause(now) > 0:
                return None
            earlier = await draft_store.get(connection, row, target)
            if earlier is not None:
                return earlier.platform_id
            write = DraftWrite(
                message=row,
                target=target,
                turn="",
                text=_ROW_TEXT,
                now=now,
                busy_until=now + timedelta(seconds=CALL_SECONDS),
            )
            await draft_store.begin_write(connection, write)
        return ""


def _row_name(buffer: StepBuffer) -> str:
    return f"{buffer.turn}.steps"
