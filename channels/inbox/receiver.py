"""Receive what a platform posts, and what a feed finds: the receiver of a message inbox.

`open_with` connects a bot with such a receiver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from channels.inbox.calls import parse_json
from channels.inbox.polling import UpdateFeed, accept_all, poll
from channels.message import IgnoredUpdate, Update
from channels.port import (
    Accept,
    ChannelState,
    Connection,
    Receiver,
    ReceiverStatus,
    Sender,
    WebhookRequest,
    WebhookResponse,
)
from channels.supervision import supervise
from egress.guard import EgressGuard

A = TypeVar("A")
B = TypeVar("B")
S = TypeVar("S")
B_contra = TypeVar("B_contra", contravariant=True)

DecodeOne = Callable[[Any], Update | IgnoredUpdate]
IsSigned = Callable[[Mapping[str, str], bytes], bool]
"""Return whether the platform sent a post of these headers and this body; false in polling mode."""

ReadPost = Callable[[Mapping[str, str], dict[str, Any]], Any]
"""Return the raw update of a post's headers and body, as the feed returns one; None if it is malformed."""


Complete = Callable[[Any], Awaitable[Any]]
"""Return a raw update with what the platform's post lacks; raises nothing."""


async def as_posted(update: Any) -> Any:
    """Return the update as it is."""
    return update


def never_signed(headers: Mapping[str, str], body: bytes) -> bool:
    """Return False: the platform posts nothing, so every post is refused with 401."""
    del headers, body
    return False


class InboxReceiver(Receiver):
    """Polls a feed until it is cancelled, and accepts signed posts; adapters verify and decode.

    Without `is_signed` the channel has no webhooks.
    """

    def __init__(
        self,
        feed: UpdateFeed,
        decode: DecodeOne,
        is_signed: IsSigned = never_signed,
        read_post: ReadPost = lambda _headers, body: body,
        complete: Complete = as_posted,
    ) -> None:
        self._feed = feed
        self._decode = decode
        self.is_signed = is_signed
        self._read_post = read_post
        self._complete = complete

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Poll the feed until cancelled."""
        stop = asyncio.Event()
        await supervise(poll(self._feed, self.decode, accept, receiving, stop), stop)

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Accept one posted update: 401 unsigned, 400 malformed, 503 if it cannot be stored."""
        if not self.is_signed(request.headers, request.body):
            return WebhookResponse(status=401)
        body = parse_json(request.body)
        update = self._read_post(request.headers, body) if isinstance(body, dict) else None
        if update is None:
            return WebhookResponse(status=400)
        decoded = self.decode(await self._complete(update))
        return WebhookResponse(status=200 if await accept_all(decoded, accept) else 503)

    def decode(self, raw: Any) -> Iterable[Update | IgnoredUpdate]:
        """Return the update of a raw one."""
        yield self._decode(raw)


class DecodeForBot(Protocol[B_contra]):
    """Return the update of a raw one in a channel; `bot` is what `identify` returned."""

    def __call__(self, raw: Any, /, *, channel: str, bot: B_contra) -> Update | IgnoredUpdate:
        """Decode one raw update."""


def open_with(
    connect: Callable[[S, EgressGuard], AbstractAsyncContextManager[A]],
    identify: Callable[[A], Awaitable[B]],
    decode: DecodeForBot[B],
    *,
    feed: Callable[[A, S, ChannelState], UpdateFeed],
    sender: Callable[[A], Sender],
) -> Callable[[str, S, ChannelState, EgressGuard], AbstractAsyncContextManager[Connection]]:
    """Return what opens a bot: it connects, asks for the bot, then polls the feed and sends.

    A wrong token ends in `identify`. The channel has no webhooks. `connect` and `identify` are as for
    `channels.inbox.checks.probe_with`.
    """

    @asynccontextmanager
    async def open_bot(
        channel: str, settings: S, state: ChannelState, guard: EgressGuard
    ) -> AsyncIterator[Connection]:
        async with connect(settings, guard) as api:
            read = partial(decode, channel=channel, bot=await identify(api))
            yield Connection(receiver=InboxReceiver(feed(api, settings, state), read), sender=sender(api))

    return open_bot
