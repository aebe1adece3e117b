"""Look up whether a delivery is in a room's history, or a file in a room."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from channels.errors import Rejected, Unreachable
from channels.message import Address, SentMessage
from channels.slack.api import Api
from channels.slack.send.rendering import METADATA_TYPE

PAGE_SIZE = 200
MAX_PAGES = 10
SKEW_SECONDS = 120
"""Seconds that the local clock and Slack's may differ."""


async def find_message(api: Api, address: Address, key: str, *, since: datetime) -> SentMessage | None:
    """Return the message with the delivery key, or None; raises ChannelError if that is unknown."""
    room = {"channel": address.room, "oldest": f"{since.timestamp() - SKEW_SECONDS:.6f}"}
    method = "conversations.replies" if address.thread else "conversations.history"
    parameters = {**room, **({"ts": address.thread} if address.thread else {})}
    cursor: dict[str, str] = {}
    for _ in range(MAX_PAGES):
        answer = await api.call(
            method,
            {**parameters, **cursor, "include_all_metadata": True, "inclusive": True, "limit": PAGE_SIZE},
        )
        for message in _messages(answer):
            if _key_of(message) == key and isinstance(message.get("ts"), str):
                return SentMessage(platform_id=message["ts"])
        following = _cursor(answer)
        if not following:
            return None
        cursor = {"cursor": following}
    raise Unreachable(f"{method}: too many messages since then to search")


async def find_file(api: Api, address: Address, file_id: str) -> SentMessage | None:
    """Return an uploaded file if it was shared in the room, else None."""
    try:
        answer = await api.call("files.info", {"file": file_id})
    except Rejected:
        return None
    file = answer.get("file")
    shares = file.get("shares") if isinstance(file, dict) else None
    places = shares.values() if isinstance(shares, dict) else []
    found = any(isinstance(rooms, dict) and address.room in rooms for rooms in places)
    return SentMessage(platform_id=file_id) if found else None


def _messages(answer: Any) -> Iterator[dict[str, Any]]:
    messages = answer.get("messages")
    yield from (
        (message for message in messages if isinstance(message, dict)) if isinstance(messages, list) else ()
    )


def _key_of(message: dict[str, Any]) -> object:
    metadata = message.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("event_type") != METADATA_TYPE:
        return None
    payload = metadata.get("event_payload")
    return payload.get("delivery_id") if isinstance(payload, dict) else None


def _cursor(answer: Any) -> str:
    page = answer.get("response_metadata")
    following = page.get("next_cursor") if isinstance(page, dict) else None
    return following if isinstance(following, str) else ""
