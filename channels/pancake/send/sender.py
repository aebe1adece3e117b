"""Send through Pancake: private messages, replies to comments, files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from channels.errors import Rejected, before_sending
from channels.inbox.text import clean
from channels.message import Address, File, Reply, SentMessage
from channels.pancake.api import PancakeApi
from channels.pancake.send.markup import fit
from channels.pancake.settings import TEXT_LIMIT
from channels.port import Sender


class PancakeSender(Sender):
    """The sending half of a page."""

    def __init__(self, api: PancakeApi) -> None:
        self._api = api

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send a private message, or answer a comment as the settings say."""
        body = {**self._action(address), "message": fit(clean(reply.text), TEXT_LIMIT)}
        return SentMessage(platform_id=await self._api.send(address.room, body))

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Store a file and send it as a message of its own; comments take no files."""
        del key
        if address.extras.get("comment"):
            raise Rejected("comments take no files")
        with before_sending():
            content = await self._api.upload(file)
        body = {"action": "reply_inbox", "content_ids": [content]}
        return SentMessage(platform_id=await self._api.send(address.room, body))

    def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a person's file."""
        return self._api.fetch(ref)

    def _action(self, address: Address) -> Mapping[str, Any]:
        comment = address.extras.get("comment", "")
        if not comment:
            return {"action": "reply_inbox"}
        if self._api.settings.comment_replies == "public":
            return {"action": "reply_comment", "message_id": comment}
        about = {"post_id": address.extras.get("post", ""), "from_id": address.extras.get("person", "")}
        return {"action": "private_replies", "message_id": comment, **about}
