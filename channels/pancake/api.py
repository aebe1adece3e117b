"""Call Pancake's public API for one page; the token is part of each URL's query."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from channels.inbox.calls import call, connecting, fetch
from channels.inbox.errors import require_id
from channels.inbox.text import clean, identifier, mapping, mappings
from channels.message import File
from channels.pancake.errors import translate_error
from channels.pancake.settings import PancakeSettings


class PancakeApi:
    """The API of one page; its repr shows no token."""

    def __init__(self, session: aiohttp.ClientSession, settings: PancakeSettings) -> None:
        self._session = session
        self.settings = settings

    async def list_conversations(self, after: str = "") -> list[Mapping[str, Any]]:
        """Return the 60 conversations that changed last, or those after a conversation."""
        more = {"last_conversation_id": after} if after else {}
        answer = await self._call("GET", "v2", "conversations", params={"order_by": "updated_at", **more})
        return mappings(answer.get("conversations"))

    async def list_messages(
        self, conversation: str, customer: str, *, before: int = 0
    ) -> list[Mapping[str, Any]]:
        """Return the latest messages of a conversation, or those before the latest `before`."""
        path = f"conversations/{quote(conversation, safe='')}/messages"
        given = {"customer_id": customer} if customer else {}
        given |= {"current_count": str(before)} if before else {}
        return mappings((await self._call("GET", "v1", path, params=given)).get("messages"))

    async def send(self, conversation: str, body: Mapping[str, Any]) -> str:
        """Send a message and return its id."""
        path = f"conversations/{quote(conversation, safe='')}/messages"
        answer = await self._call("POST", "v1", path, json=dict(body))
        return require_id(answer.get("id") or mapping(answer.get("message")).get("id"), "messages")

    async def upload(self, file: File) -> str:
        """Store a file at Pancake, and return the id with which a message contains it."""
        form = aiohttp.FormData()
        form.add_field("file", file.content, filename=file.name, content_type=file.media_type)
        answer = await self._call("POST", "v1", "upload_contents", data=form)
        return require_id(answer.get("id") or answer.get("content_id"), "upload_contents")

    def fetch(self, url: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a person's file."""
        return fetch(self._session, url)

    async def _call(self, method: str, version: str, path: str, **options: Any) -> Mapping[str, Any]:
        settings, what = self.settings, path.rpartition("/")[2]
        url = f"{settings.base_url}/{version}/pages/{quote(settings.page_id, safe='')}/{path}"
        token = {"page_access_token": settings.page_access_token.get_secret_value()}
        query = {**options.pop("params", {}), **token}
        response = await call(self._session, method, url, what=what, params=query, **options)
        answer = mapping(response.json)
        if response.status != 200 or answer.get("success") is False or not answer:  # noqa: PLR2004
            raise translate_error(what, response)
        return answer


def customer_of(conversation: Mapping[str, Any]) -> str:
    """Return the customer's id of a conversation, which a question for its messages needs."""
    first = next(iter(mappings(conversation.get("customers"))), {})
    return clean(conversation.get("customer_id")) or identifier(first.get("id"))


connect = connecting(PancakeApi)
