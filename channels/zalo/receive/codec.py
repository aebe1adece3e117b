"""Decode the updates of both platforms into messages; pure.

An update of the Bot Platform is {event_name, message}, bare or within {ok, result}. An event of an Official
Account is {event_name, sender, recipient, message, timestamp}.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from channels.inbox.text import (
    UNKNOWN_MEDIA_TYPE,
    bare_file_name,
    clean,
    identifier,
    mapping,
    mappings,
    unix_time,
)
from channels.inbox.updates import find_mention, parse_update
from channels.message import Address, Attachment, Author, Command, IgnoredUpdate, Message, RoomKind
from channels.receiving.descriptions import UNREADABLE, describe_location, describe_stickers
from channels.zalo.api import Bot

__all__ = ["Bot", "decode"]

_PICTURES = {"image", "gif", "photo"}
_TYPES = dict.fromkeys(_PICTURES, "image/jpeg") | {"audio": "audio/mpeg", "voice": "audio/aac"}
_FILES = {*_TYPES, "file", "video"}
_WITHOUT_TEXT = {
    "message.sticker.received": describe_stickers([""]),
    "message.unsupported.received": UNREADABLE,
}


def decode(update: object, *, channel: str, bot: Bot) -> Message | Command | IgnoredUpdate:
    """Decode one update."""
    whole = mapping(update)
    event = mapping(whole.get("result")) or whole
    name, message = clean(event.get("event_name")), mapping(event.get("message"))
    if name.startswith("message.") and name.endswith(".received"):
        return _bot_message(name, message, channel, bot)
    if name.startswith("user_send_") and "group" not in name:
        return _oa_message(event, message, channel, bot)
    return IgnoredUpdate(reason=f"an event of another kind: {name[:60]}")


def _bot_message(
    name: str, message: Mapping[str, Any], channel: str, bot: Bot
) -> Message | Command | IgnoredUpdate:
    chat, person = mapping(message.get("chat")), mapping(message.get("from"))
    number, room = identifier(message.get("message_id")), identifier(chat.get("id"))
    author = identifier(person.get("id"))
    if not number or not room or not author:
        return IgnoredUpdate(reason="a message without an id, a chat or an author")
    if author == bot.id:
        return IgnoredUpdate(reason="the bot's own message")
    photo = clean(message.get("photo") or message.get("photo_url"))
    links = [("photo", {"url": photo}), ("voice", {"url": clean(message.get("voice_url"))})]
    text = clean(message.get("text") or message.get("caption")) or _WITHOUT_TEXT.get(name, "")
    is_group = chat.get("chat_type") == "GROUP"
    mention, text = find_mention(text.strip(), bot.name) if is_group else (False, text.strip())
    common: dict[str, Any] = {
        "key": f"bot:{number}",
        "address": Address(channel=channel, room=room),
        "author": Author(
            id=author, name=clean(person.get("display_name")), is_bot=person.get("is_bot") is True
        ),
        "sent_at": unix_time(message.get("date")),
        "room": RoomKind.GROUP if is_group else RoomKind.DIRECT,
        "platform_id": number,
    }
    return parse_update(text, common, mention=mention, attachments=_attachments(links))


def _oa_message(
    event: Mapping[str, Any], message: Mapping[str, Any], channel: str, bot: Bot
) -> Message | Command | IgnoredUpdate:
    if identifier(mapping(event.get("recipient")).get("id")) not in {"", bot.id}:
        return IgnoredUpdate(reason="an event of another Official Account of the app")
    number, author = identifier(message.get("msg_id")), identifier(mapping(event.get("sender")).get("id"))
    if not number or not author:
        return IgnoredUpdate(reason="an event without a message or a sender")
    rows = [
        (clean(row.get("type")), mapping(row.get("payload"))) for row in mappings(message.get("attachments"))
    ]
    others = [_describe(kind, payload) for kind, payload in rows if kind not in _FILES]
    common: dict[str, Any] = {
        "key": f"oa:{number}",
        "address": Address(channel=channel, room=author),
        "author": Author(id=author),
        "sent_at": unix_time(event.get("timestamp")),
        "platform_id": number,
    }
    text = "\n".join([clean(message.get("text")).strip(), *others]).strip()
    return parse_update(text, common, mention=False, attachments=_attachments(rows))


def _attachments(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[Attachment, ...]:
    """Return the files among what a message holds, which have links."""
    files = [(kind, payload) for kind, payload in rows if kind in _FILES and clean(payload.get("url"))]
    return tuple(_attachment(kind, payload, number) for number, (kind, payload) in enumerate(files, 1))


def _attachment(kind: str, payload: Mapping[str, Any], number: int) -> Attachment:
    url = clean(payload["url"])
    if kind in _PICTURES:
        return Attachment(name=f"picture-{number}.jpg", media_type="image/jpeg", size=0, ref=url)
    of_link = bare_file_name(urlsplit(url).path, otherwise=f"{kind}-{number}")
    name = bare_file_name(payload.get("name"), otherwise=of_link)
    media_type = mimetypes.guess_type(name)[0] or _TYPES.get(kind, UNKNOWN_MEDIA_TYPE)
    return Attachment(name=name, media_type=media_type, size=0, ref=url)


def _describe(kind: str, payload: Mapping[str, Any]) -> str:
    """Return the words for what a message holds that is no file: a place, a sticker, a link, a card."""
    place, link = mapping(payload.get("coordinates")), clean(payload.get("url"))
    if place:
        return describe_location(*(clean(str(place.get(name))) for name in ("latitude", "longitude")))
    if kind == "sticker":
        return describe_stickers([link])
    return " ".join(filter(None, (f"[{kind}]", clean(payload.get("description")), link)))
