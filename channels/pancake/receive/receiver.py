"""Receive from Pancake: a post announces a message, and the message itself is read from Pancake.

Pancake signs nothing, so the content of a post is not trusted. It is answered with 200 whatever
happens, because Pancake suspends a webhook whose posts fail; what could not be stored is read again soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from channels.errors import ChannelError
from channels.inbox.calls import parse_json
from channels.inbox.polling import accept_all, log
from channels.inbox.receiver import InboxReceiver
from channels.inbox.text import identifier, mapping
from channels.pancake.receive.codec import Bot, decode
from channels.pancake.receive.messages import PageMessages
from channels.pancake.settings import PancakeSettings
from channels.port import Accept, WebhookRequest, WebhookResponse

MAX_READS = 8
"""Posts that are followed by a question at once; further ones wait for the next regular question."""


class PancakeReceiver(InboxReceiver):
    """The receiving half of a page."""

    def __init__(self, feed: PageMessages, settings: PancakeSettings, *, channel: str) -> None:
        bot = Bot(page=settings.page_id, name=settings.page_name)
        # Pancake signs nothing, and the content of a post is not trusted.
        super().__init__(
            feed, partial(decode, channel=channel, bot=bot), lambda _headers, _body: not settings.polls
        )
        self._messages = feed
        self._settings = settings
        self._reads = 0

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Read the announced conversation, and answer 200; 401 in polling mode."""
        if not self.is_signed(request.headers, request.body):
            return WebhookResponse(status=401)
        body = mapping(parse_json(request.body))
        conversation = mapping(mapping(body.get("data")).get("conversation"))
        is_ours = identifier(body.get("page_id")) == self._settings.page_id
        if is_ours and identifier(conversation.get("id")) and self._reads < MAX_READS:
            self._reads += 1
            try:
                await self._read(conversation, accept)
            except ChannelError as error:
                log.warning("pancake.message_read_failed", error=str(error))
            finally:
                self._reads -= 1
        return WebhookResponse(status=200)

    async def _read(self, conversation: Mapping[str, Any], accept: Accept) -> None:
        """Accept what Pancake itself says about a conversation; only `run` moves the position."""
        for raw in await self._messages.fetch_one(conversation):
            if not await accept_all(self.decode(raw), accept):
                return
