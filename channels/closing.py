"""Refuse calls of a closed channel, and let those in progress end before what they use is closed.

A channel closes when its record changes. Deliveries, drafts and downloads hold its sender while they wait,
and requests of the platform and of browsers hold its receiver and its installations. So a late call has an
error or a status of the port, never an error of the platform's library.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime

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
from channels.port import (
    Accept,
    ChannelInstallation,
    ChannelInstallations,
    Connection,
    PageRequest,
    PageResponse,
    Receiver,
    ReceiverStatus,
    Sender,
    WebhookRequest,
    WebhookResponse,
)

CLOSING_SECONDS = 2.0
"""Seconds that calls in progress may take to end before what they use is closed."""

REOPENED = "The bot is being connected again. Please reload this page in a moment."


def closable(connection: Connection, calls: CallsInProgress) -> Connection:
    """Return a connection whose calls are counted, and refused once `calls` is closed."""
    pages = connection.installations
    return replace(
        connection,
        receiver=ClosableReceiver(connection.receiver, calls),
        sender=ClosableSender(connection.sender, calls),
        installations=None if pages is None else ClosableInstallations(pages, calls),
    )


class CallsInProgress:
    """The calls of one connection. After the end they raise Unreachable; one that it breaks, Ambiguous."""

    def __init__(self) -> None:
        self.is_closed = False
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def close(self) -> None:
        """Refuse further calls, and wait until those in progress have ended or the grace is over."""
        self.is_closed = True
        waiting = asyncio.create_task(self._idle.wait())
        try:
            await asyncio.wait({waiting}, timeout=CLOSING_SECONDS)
        finally:
            waiting.cancel()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count the block as a call of the channel."""
        if self.is_closed:
            raise Unreachable("the channel was closed: nothing was sent")
        self._running += 1
        self._idle.clear()
        try:
            yield
        except ChannelError:
            raise
        except Exception as error:  # of the library, whose session was closed
            if self.is_closed:
                raise Ambiguous("the channel was closed during the call") from error
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()


class ClosableReceiver(Receiver):
    """A receiver that answers posted requests with 503 after its channel's end: the platform tries again."""

    def __init__(self, receiver: Receiver, calls: CallsInProgress) -> None:
        self._receiver = receiver
        self._calls = calls

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive until cancelled, which is before the end."""
        await self._receiver.run(accept, receiving=receiving)

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Return the response to a posted request."""
        try:
            with self._calls.call():
                return await self._receiver.receive(request, accept)
        except ChannelError:
            if not self._calls.is_closed:
                raise
            return WebhookResponse(status=503)


class ClosableInstallations(ChannelInstallations):
    """Installations whose pages are unavailable after their channel's end."""

    def __init__(self, installations: ChannelInstallations, calls: CallsInProgress) -> None:
        self._installations = installations
        self._calls = calls

    async def show_page(self, request: PageRequest) -> PageResponse:
        """Return a page for a person's browser."""
        try:
            with self._calls.call():
                return await self._installations.show_page(request)
        except ChannelError:
            if not self._calls.is_closed:
                raise
            return PageResponse(status=503, body=REOPENED)

    async def list(self, *, after: str = "", limit: int = 200) -> Sequence[ChannelInstallation]:
        """Return installations in the order of ids."""
        with self._calls.call():
            return await self._installations.list(after=after, limit=limit)

    async def get(self, installation: str) -> ChannelInstallation | None:
        """Return the installation with an id, or None."""
        with self._calls.call():
            return await self._installations.get(installation)

    async def uninstall(self, installation: str) -> bool:
        """Uninstall the app and forget its token."""
        with self._calls.call():
            return await self._installations.uninstall(installation)


class ForwardingSender(Sender):
    """Makes each call with the sender of its address; errors are those of that sender, or of choosing it."""

    @abstractmethod
    def using(self, address: Address) -> AbstractAsyncContextManager[Sender]:
        """Yield the sender for a call about an address; raises ChannelError."""

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message."""
        async with self.using(address) as sender:
            return await sender.send(address, reply)

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Replace a message's content."""
        async with self.using(address) as sender:
            return await sender.edit(address, platform_id, reply)

    async def delete(self, address: Address, platform_id: str) -> None:
        """Delete one of the bot's messages."""
        async with self.using(address) as sender:
            await sender.delete(address, platform_id)

    async def update_draft(self, address: Address, draft: DraftText) -> SentMessage | None:
        """Show the text generated so far."""
        async with self.using(address) as sender:
            return await sender.update_draft(address, draft)

    async def show_steps(self, address: Address, steps: ToolSteps) -> SentMessage | None:
        """Show the tool calls of a turn."""
        async with self.using(address) as sender:
            return await sender.show_steps(address, steps)

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Return the message with this key, or None."""
        async with self.using(address) as sender:
            return await sender.find(address, key, since=since)

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Set the bot's reaction on a message."""
        async with self.using(address) as sender:
            await sender.react(address, platform_id, reaction)

    async def add_reaction(self, address: Address, platform_id: str, emoji: str) -> None:
        """Add a reaction of the bot to a message."""
        async with self.using(address) as sender:
            await sender.add_reaction(address, platform_id, emoji)

    async def typing(self, address: Address) -> None:
        """Show a typing indicator."""
        async with self.using(address) as sender:
            await sender.typing(address)

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file as a native attachment."""
        async with self.using(address) as sender:
            return await sender.upload(address, file, key=key)

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Reply once to the user who pressed a button or gave a command."""
        async with self.using(to.address) as sender:
            await sender.reply_privately(to, text)

    async def reply_confidentially(self, to: Message | Command, text: str) -> None:
        """Reply so that only the author of a message reads it."""
        async with self.using(to.address) as sender:
            await sender.reply_confidentially(to, text)


class ClosableSender(ForwardingSender):
    """A sender whose calls are counted."""

    def __init__(self, sender: Sender, calls: CallsInProgress) -> None:
        self._sender = sender
        self._calls = calls

    @asynccontextmanager
    async def using(self, address: Address) -> AsyncIterator[Sender]:
        """Count a call."""
        del address
        with self._calls.call():
            yield self._sender

    async def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an attachment in chunks."""
        with self._calls.call():
            async for chunk in self._sender.download(ref):
                yield chunk
