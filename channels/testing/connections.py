"""A channel's connection in a test: opened from plain settings, its receiver run and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from channels.message import Message, Update
from channels.port import ChannelPlugin, ChannelState, Connection
from channels.testing.memory_state import MemoryChannelState
from channels.testing.rig import ChannelRig
from egress.guard import TRUSTED

CHANNEL = "chn_contract"
"""The id of the channel record in the suite."""


@dataclass(slots=True)
class UpdateRecorder:
    """An `accept` that records updates, and raises while it has `refusals` left."""

    updates: list[Update] = field(default_factory=list)
    refused: int = 0
    refusals: int = 0
    states: list[bool] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    _received: asyncio.Condition = field(default_factory=asyncio.Condition)
    _reported: asyncio.Event = field(default_factory=asyncio.Event)

    async def accept(self, update: Update) -> None:
        """Record an update; raises OSError, as on a full disk, while there are refusals left."""
        async with self._received:
            self._received.notify_all()
            if self.refusals:
                self.refusals -= 1
                self.refused += 1
                raise OSError("no space left on device")
            self.updates.append(update)

    def record_status(self, yes: bool, why: str = "", /) -> None:
        """Record whether the receiver receives, and the reason when it does not."""
        self.states.append(yes)
        self.reasons += [why] if why else []
        self._reported.set()

    async def wait_until_receiving(self) -> None:
        """Return once the receiver reports that it receives; raises TimeoutError after 20 s."""
        async with asyncio.timeout(30):
            while not (self.states and self.states[-1]):
                self._reported.clear()
                await self._reported.wait()

    async def wait(self, count: int) -> list[Update]:
        """Return the updates once there are `count` of them; raises TimeoutError after 20 s."""
        async with asyncio.timeout(30), self._received:
            await self._received.wait_for(lambda: len(self.updates) >= count)
        return self.updates


@asynccontextmanager
async def open_connection(
    plugin: ChannelPlugin, settings: Mapping[str, Any], notes: ChannelState | None = None
) -> AsyncIterator[Connection]:
    """Open a connection from plain settings; without `notes` its state is in memory."""
    state, read = notes or MemoryChannelState(), plugin.settings(**settings)
    async with plugin.open(CHANNEL, read, state, TRUSTED) as connection:
        assert plugin.is_installable(read) == (connection.installations is not None), "see ChannelPlugin"
        yield connection


@asynccontextmanager
async def receiving(connection: Connection, recorder: UpdateRecorder) -> AsyncIterator[asyncio.Task[None]]:
    """Run the receiver in the background, until the block ends."""
    task = asyncio.create_task(connection.receiver.run(recorder.accept, receiving=recorder.record_status))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def receive_message(connection: Connection, rig: ChannelRig) -> Message:
    """Send a message as the person, and return it as the bot receives it."""
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.say("hello")
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    return update
