"""Open a channel, run its receiver, and end both in time, whatever the library of the platform does.

Deliveries, drafts and downloads hold a sender while they wait, and a channel closes when its record changes.
So a late call is an error of the port, never the library's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from channels.errors import Ambiguous, ChannelError, Unreachable
from channels.message import (
    Address,
    ButtonPress,
    Command,
    DraftText,
    File,
    Message,
    Reply,
    SentMessage,
    StatusReaction,
    ToolSteps,
)
from channels.port import ChannelPlugin, ChannelState, Connection, Sender
from egress.guard import EgressGuard

GRACE_SECONDS = 0.8
"""Seconds a cancelled receiver may take to end; the port allows one second in all."""

CLOSING_SECONDS = 2.0
"""Seconds that calls in progress may take to end before what they use is closed."""


async def supervise(coroutine: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run the coroutine until it ends or the caller is cancelled; then set `stop` and wait GRACE_SECONDS.

    The coroutine runs in a task of its own. On Python 3.11 a library may swallow a cancellation; then the
    `stop` flag ends the loop, and this function still returns in time.
    """
    task = asyncio.create_task(coroutine)
    try:
        await asyncio.wait({task})
    finally:
        stop.set()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
    task.result()


@asynccontextmanager
async def open_channel(
    plugin: ChannelPlugin, channel_id: str, settings: Any, state: ChannelState, guard: EgressGuard
) -> AsyncIterator[Connection]:
    """Open a channel; at the end its sender refuses further calls, and those in progress may end."""
    async with plugin.open(channel_id, settings, state, guard) as connection:
        sender = ClosableSender(connection.sender)
        try:
            yield replace(connection, sender=sender)
        finally:
            await sender.close()


class ClosableSender(Sender):
    """A sender whose calls raise Unreachable after its end; one that the end breaks raises Ambiguous."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._running = 0
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def close(self) -> None:
        """Refuse further calls, and wait until those in progress have ended or the grace is over."""
        self._is_closed = True
        waiting = asyncio.create_task(self._idle.wait())
        try:
            await asyncio.wait({waiting}, timeout=CLOSING_SECONDS)
        finally:
            waiting.cancel()

    @contextmanager
    def _call(self) -> Iterator[None]:
        if self._is_closed:
            raise Unreachable("the channel was closed: nothing was sent")
        self._running += 1
        self._idle.clear()
        try:
            yield
        except ChannelError:
            raise
        except Exception as error:
            if self._is_closed:
                raise Ambiguous("the channel was closed during the call") from error
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message."""
        with self._call():
            return await self._sender.send(address, reply)

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Replace a message's content."""
        with self._call():
            return await self._sender.edit(address, platform_id, reply)

    async def delete(self, address: Address, platform_id: str) -> None:
        """Delete one of the bot's messages."""
        with self._call():
            await self._sender.delete(address, platform_id)

    async def update_draft(self, address: Address, draft: DraftText) -> SentMessage | None:
        """Show the text generated so far."""
        with self._call():
            return await self._sender.update_draft(address, draft)

    async def show_steps(self, address: Address, steps: ToolSteps) -> SentMessage | None:
        """Show the tool calls of a turn."""
        with self._call():
            return await self._sender.show_steps(address, steps)

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Return the message with this key, or None."""
        with self._call():
            return await self._sender.find(address, key, since=since)

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Set the bot's reaction on a message."""
        with self._call():
            await self._sender.react(address, platform_id, reaction)

    async def add_reaction(self, address: Address, platform_id: str, emoji: str) -> None:
        """Add a reaction of the bot to a message."""
        with self._call():
            await self._sender.add_reaction(address, platform_id, emoji)

    async def typing(self, address: Address) -> None:
        """Show a typing indicator."""
        with self._call():
            await self._sender.typing(address)

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file as a native attachment."""
        with self._call():
            return await self._sender.upload(address, file, key=key)

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an attachment in chunks."""
        with self._call():
            async for chunk in self._sender.download(ref):
                yield chunk

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Reply once to the user who pressed a button or gave a command."""
        with self._call():
            await self._sender.reply_privately(to, text)

    async def reply_confidentially(self, to: Message | Command, text: str) -> None:
        """Reply so that only the author of a message reads it."""
        with self._call():
            await self._sender.reply_confidentially(to, text)
