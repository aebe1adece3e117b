"""Decode the updates of both platforms into messages; pure.

An update of the Bot Platform is {event_name, message}, bare or within {ok, result}. An event of an Official
Account is {event_name, sender, recipient, message, timestamp}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from channels.inbox.text import clean, identifier, mapping, mappings, unix_time
from channels.inbox.updates import find_mention, parse_update
from channels.message import Address, Attachment, Author, Command, IgnoredUpdate, Message, RoomKind
from channels.zalo.api import Bot

__all__ = ["Bot", "decode"]

_PICTURES = {"image", "gif", "photo"}


def decode(update: object, *, channel: str, bot: Bot) -> Message | Command | IgnoredUpdate:
    """Decode one update."""
    whole = mapping(update)
    event = mapping(whole.get("result")) or whole
    name, message = clean(event.get("event_name")), mapping(event.get("message"))
    if name.startswith("message.") and name.endswith(".received"):
        return _bot_message(name, message, channel, bot)
    if name.startswith("user_send_") and "group" not in name:
        return _oa_message(event, message, channel)
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
    text = clean(message.get("text") or message.get("caption"))
    if name == "message.sticker.received":
        text = "[sticker]"
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
    return _finish(text, (photo,) if photo else (), common, mention=mention)


def _oa_message(
    event: Mapping[str, Any], message: Mapping[str, Any], channel: str
) -> Message | Command | IgnoredUpdate:
    number, author = identifier(message.get("msg_id")), identifier(mapping(event.get("sender")).get("id"))
    if not number or not author:
        return IgnoredUpdate(reason="an event without a message or a sender")
    rows = mappings(message.get("attachments"))
    links = [(clean(row.get("type")), clean(mapping(row.get("payload")).get("url"))) for row in rows]
    pictures = tuple(url for kind, url in links if kind in _PICTURES and url)
    others = [f"[{kind}] {url}".strip() for kind, url in links if kind not in _PICTURES]
    common: dict[str, Any] = {
        "key": f"oa:{number}",
        "address": Address(channel=channel, room=author),
        "author": Author(id=author),
        "sent_at": unix_time(event.get("timestamp")),
        "platform_id": number,
    }
    return _finish("\n".join([clean(message.get("text")).strip(), *others]).strip(), pictures, common)


def _finish(
    text: str, pictures: Sequence[str], common: dict[str, Any], *, mention: bool = False
) -> Message | Command | IgnoredUpdate:
    attachments = tuple(
        Attachment(name=f"picture-{number}.jpg", media_type="image/jpeg", size=0, ref=url)
        for number, url in enumerate(pictures, 1)
    )
    return parse_update(text, common, mention=mention, attachments=attachments)
