"""Send to Zalo: plain text, and pictures by their links."""

from __future__ import annotations

from collections.abc import AsyncIterator

import structlog

from channels.errors import Rejected
from channels.inbox.plain import fit
from channels.inbox.text import clean
from channels.message import Address, Reply, SentMessage
from channels.port import Sender
from channels.zalo.api import ZaloApi
from channels.zalo.send.markup import parse_image
from channels.zalo.settings import TEXT_LIMIT

log = structlog.get_logger(__name__)


class ZaloSender(Sender):
    """The sending half of a bot or an Official Account."""

    def __init__(self, api: ZaloApi) -> None:
        self._api = api

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message; a text that is only an image is sent as a picture, or as a link if refused."""
        image = parse_image(reply.text)
        if image is not None:
            try:
                return SentMessage(platform_id=await self._api.send_image(address.room, image[0], image[1]))
            except Rejected as error:
                log.warning("zalo.picture_refused", error=str(error))
        text = fit(clean(reply.text), TEXT_LIMIT)
        return SentMessage(platform_id=await self._api.send_text(address.room, text))

    async def typing(self, address: Address) -> None:
        """Show a bot as writing; an Official Account shows nothing."""
        await self._api.send_typing(address.room)

    def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a person's picture."""
        return self._api.fetch(ref)
