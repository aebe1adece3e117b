"""Look up whether a delivery is in a room's history, or a file in a room."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from channels.errors import Rejected, Unreachable, Unsupported
from channels.inbox.text import mapping, text_at, to_number
from channels.message import Address, SentMessage
from channels.slack.api import Api
from channels.slack.errors import error_code
from channels.slack.payloads import Bot
from channels.slack.send.rendering import METADATA_TYPE
from channels.slack.send.streaming import STREAM_PREFIX, digest

PAGE_SIZE = 200
MAX_PAGES = 10
SKEW_SECONDS = 120
"""Seconds that the local clock and Slack's may differ."""

SHARING_SECONDS = 120
"""Seconds after which a file that was shared shows its rooms."""

_NO_FILE_CODES = {"file_not_found", "file_deleted"}


async def find_message(
    api: Api, address: Address, key: str, *, since: datetime, bot: Bot, started: str = ""
) -> SentMessage | None:
    """Return the message with the delivery key, or None; raises ChannelError if that is unknown.

    `started` is the digest of the text with which the key's stream was started, without an answer; such a
    message has no metadata. Raises Unsupported if any other reply of the bot is shown without metadata: it
    may be the one with the key.
    """
    oldest = since.timestamp() - SKEW_SECONDS
    room = {"channel": address.room, "oldest": f"{oldest:.6f}"}
    method = "conversations.replies" if address.thread else "conversations.history"
    parameters = {**room, **({"ts": address.thread} if address.thread else {})}
    cursor: dict[str, str] = {}
    hidden: list[dict[str, Any]] = []
    for _ in range(MAX_PAGES):
        answer = await api.call(
            method,
            {**parameters, **cursor, "include_all_metadata": True, "inclusive": True, "limit": PAGE_SIZE},
        )
        for message in _messages(method, answer):
            if _key_of(message) == key and isinstance(message.get("ts"), str):
                return SentMessage(platform_id=message["ts"])
            if _is_reply_without_metadata(message, bot) and not _seconds(message) < oldest:
                hidden.append(message)
        following = text_at(answer, "response_metadata", "next_cursor")
        if not following:
            break
        cursor = {"cursor": following}
    else:
        raise Unreachable(f"{method}: too many messages since then to search")
    streams = [one["ts"] for one in hidden if isinstance(one.get("ts"), str) and _digest_of(one) == started]
    if len(streams) == 1:
        return SentMessage(platform_id=STREAM_PREFIX + streams[0])
    if hidden:
        raise Unsupported(f"{method}: Slack does not show the metadata of messages here")
    return None


async def find_file(api: Api, address: Address, file_id: str) -> SentMessage | None:
    """Return an uploaded file if it was shared in the room, else None; raises ChannelError if unknown."""
    try:
        answer = await api.call("files.info", {"file": file_id})
    except Rejected as error:
        if error_code(error) in _NO_FILE_CODES:
            return None
        raise
    file = answer.get("file")
    if not isinstance(file, dict):
        raise Unreachable("files.info: the response describes no file")
    shares = file.get("shares")
    places = shares.values() if isinstance(shares, dict) else []
    if any(isinstance(rooms, dict) and address.room in rooms for rooms in places):
        return SentMessage(platform_id=file_id)
    if time.time() - to_number(file.get("created")) < SHARING_SECONDS:
        raise Unreachable("files.info: the file is new, and Slack may still be sharing it")
    return None


def _messages(method: str, answer: Any) -> Iterator[dict[str, Any]]:
    messages = answer.get("messages")
    if not isinstance(messages, list):
        raise Unreachable(f"{method}: the response has no list of messages")
    return (message for message in messages if isinstance(message, dict))


def _digest_of(message: dict[str, Any]) -> str:
    return digest(str(message.get("text") or ""))


def _key_of(message: dict[str, Any]) -> object:
    metadata = mapping(message.get("metadata"))
    is_ours = metadata.get("event_type") == METADATA_TYPE
    return mapping(metadata.get("event_payload")).get("delivery_id") if is_ours else None


def _is_reply_without_metadata(message: dict[str, Any], bot: Bot) -> bool:
    """Return whether a message is one that `send` posted, without the metadata that `send` adds.

    Files and notices such as "joined the channel" never have metadata.
    """
    is_own = message.get("user") == bot.id or bool(bot.bot_id and message.get("bot_id") == bot.bot_id)
    is_reply = message.get("subtype") in {None, "bot_message"} and not message.get("files")
    has_metadata = bool(mapping(message.get("metadata")).get("event_type"))
    return is_own and is_reply and not has_metadata


def _seconds(message: dict[str, Any]) -> float:
    """Return when a message was posted; NaN if that is unknown, which is never before another moment."""
    return to_number(message.get("ts"), float("nan"))
