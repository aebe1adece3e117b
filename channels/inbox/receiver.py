"""Receive what a platform posts, and what a feed finds: the receiver of a message inbox."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from channels.inbox.calls import parse_json
from channels.inbox.polling import UpdateFeed, accept_all, poll
from channels.message import IgnoredUpdate, Update
from channels.port import Accept, Receiver, ReceiverStatus, WebhookRequest, WebhookResponse
from channels.supervision import supervise


class InboxReceiver(Receiver):
    """Polls `feed` until it is cancelled, and accepts signed posts; adapters verify and decode."""

    feed: UpdateFeed

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Prepare, and poll the feed until cancelled."""
        stop = asyncio.Event()
        await supervise(self._run(accept, receiving, stop), stop)

    async def _run(self, accept: Accept, receiving: ReceiverStatus, stop: asyncio.Event) -> None:
        await self.prepare(receiving, stop)
        await poll(self.feed, self.decode, accept, receiving, stop)

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Accept one posted update: 401 unsigned, 400 malformed, 503 if it cannot be stored."""
        if not self.is_signed(request):
            return WebhookResponse(status=401)
        body = parse_json(request.body)
        update = self.read_post(request, body) if isinstance(body, dict) else None
        if update is None:
            return WebhookResponse(status=400)
        return WebhookResponse(status=200 if await accept_all(self.decode(update), accept) else 503)

    async def prepare(self, receiving: ReceiverStatus, stop: asyncio.Event) -> None:
        """Do what comes before the first poll; nothing by default."""

    @abstractmethod
    def is_signed(self, request: WebhookRequest) -> bool:
        """Return whether the platform sent a post; false in polling mode."""

    def read_post(self, request: WebhookRequest, body: dict[str, Any]) -> Any:
        """Return the raw update of a post, as the feed returns one; None if it is malformed."""
        del request
        return body

    @abstractmethod
    def decode(self, raw: Any) -> Iterable[Update | IgnoredUpdate]:
        """Return the updates of a raw one."""
