"""Decode a page's messages and comments; pure.

`decode` expects {"conversation", "message"}, as the API gives them and as a webhook's `data` holds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from channels.inbox.text import clean, identifier, iso_time, mapping, mappings
from channels.inbox.updates import find_mention, parse_update
from channels.message import Address, Attachment, Author, Command, IgnoredUpdate, Message, RoomKind
from channels.receiving.descriptions import describe_stickers

_TYPES = {"photo": "image/jpeg", "image": "image/jpeg", "video": "video/mp4", "audio": "audio/mpeg"}
_AGENT_FIELDS = ("admin_id", "admin_name", "uid", "ai_generated")
"""Fields of `from` that name who wrote for the page in Pancake."""

_WITHOUT_FILE = {"sticker", "system_message"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """The page; `name` is how a comment mentions it."""

    page: str
    name: str = ""


def decode(update: object, *, channel: str, bot: Bot) -> Message | Command | IgnoredUpdate:
    """Decode one message."""
    conversation = mapping(mapping(update).get("conversation"))
    message = mapping(mapping(update).get("message"))
    person = mapping(message.get("from"))
    room, number = identifier(conversation.get("id")), identifier(message.get("id"))
    author = identifier(person.get("id"))
    if not room or not number or not author:
        return IgnoredUpdate(reason="a message without an id, a conversation or an author")
    if author == bot.page:
        is_agent = any(person.get(name) for name in _AGENT_FIELDS)
        return IgnoredUpdate(reason="a human agent's message" if is_agent else "the page's own message")
    if message.get("is_removed") is True:
        return IgnoredUpdate(reason="a removed message")
    is_comment = clean(message.get("type") or conversation.get("type")) == "COMMENT"
    text = clean(message.get("original_message") or message.get("message")).strip()
    mention, text = find_mention(text, bot.name) if is_comment else (False, text)
    text = "\n".join(filter(None, (text, *_describe_others(message))))
    attachments = tuple(_attachments(message))
    common: dict[str, Any] = {
        "key": f"{bot.page}:{number}",
        "address": Address(
            channel=channel, room=room, extras=_extras(conversation, number, author, is_comment)
        ),
        "author": Author(id=author, name=clean(person.get("name"))),
        "sent_at": iso_time(message.get("inserted_at")),
        "room": RoomKind.GROUP if is_comment else RoomKind.DIRECT,
        "platform_id": number,
    }
    return parse_update(text, common, mention=mention, attachments=attachments)


def _extras(
    conversation: Mapping[str, Any],
    number: str,
    author: str,
    is_comment: bool,  # noqa: FBT001 - one call
) -> dict[str, str]:
    """Return what an answer to a comment needs; a private message needs nothing."""
    if not is_comment:
        return {}
    return {"comment": number, "post": identifier(conversation.get("post_id")), "person": author}


def _attachments(message: Mapping[str, Any]) -> list[Attachment]:
    found: list[Attachment] = []
    for row in mappings(message.get("attachments")):
        url, kind = _link(row), _kind(row)
        if url and kind not in _WITHOUT_FILE:
            given = clean(row.get("name")).replace("\\", "/").rpartition("/")[2].strip(". ")
            media = clean(row.get("mime_type")) or _TYPES.get(kind, "application/octet-stream")
            name = given or f"{kind or 'file'}-{len(found) + 1}"
            found.append(Attachment(name=name, media_type=media, size=0, ref=url))
    return found


def _describe_others(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words for what a message holds that is no file: a sticker, a place, a card."""
    for row in mappings(message.get("attachments")):
        kind = _kind(row)
        if kind == "sticker":
            yield describe_stickers([""])
        elif kind and kind != "system_message" and not _link(row):
            words = (clean(row.get(name)) for name in ("name", "title", "description"))
            yield " ".join(filter(None, (f"[{kind}]", *words)))


def _kind(row: Mapping[str, Any]) -> str:
    return clean(row.get("type")).lower()


def _link(row: Mapping[str, Any]) -> str:
    """Return the link of a file, which Pancake passes on as the platform behind the page gives it."""
    places = (row, *(mapping(row.get(name)) for name in ("image_data", "video_data", "payload")))
    return next(filter(None, (clean(place.get("url")) for place in places)), "")
