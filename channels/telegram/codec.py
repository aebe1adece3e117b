"""Telegram's words into ours and ours into Telegram's; pure.

Updates and parameters are those of the Bot API. Only the fields that are read are declared: an update whose
other parts are odd is still understood, and one whose needed parts are odd is Ignored, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from channels.message import (
    Address,
    Attachment,
    Author,
    Button,
    Ignored,
    Message,
    Moved,
    Press,
    Reply,
    Room,
    Update,
)

LATEST = 253402300799
"""The last second of the year 9999: later ones are no datetime."""

_COMMAND = re.compile(r"/(\w{1,64})(?:@(\w{1,64}))?(?=\s|$)", re.ASCII)


def is_group(room: str) -> bool:
    """Say whether a chat is a group or channel; the ids of private chats are those of people, above 0."""
    return room.startswith("-")


def measure(text: str) -> int:
    """Count UTF-16 units, Telegram's measure of text."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """Who we are at Telegram."""

    id: str
    username: str


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class _User(_Model):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str | None = None
    username: str | None = None


class _Chat(_Model):
    id: int
    type: str = ""
    title: str | None = None


class _Entity(_Model):
    type: str = ""
    offset: int = 0
    length: int = 0
    user: _User | None = None


class _File(_Model):
    file_id: Annotated[str, StringConstraints(min_length=1)]
    file_size: int | None = None
    file_name: str | None = None
    mime_type: str | None = None
    emoji: str | None = None
    is_animated: bool = False
    is_video: bool = False


class _Replied(_Model):
    from_: _User | None = Field(default=None, alias="from")
    forum_topic_created: dict[str, Any] | None = None


class _Message(_Model):
    message_id: int
    date: int = Field(default=0, ge=0, le=LATEST)
    edit_date: int | None = Field(default=None, ge=0, le=LATEST)
    chat: _Chat
    from_: _User | None = Field(default=None, alias="from")
    sender_chat: _Chat | None = None
    text: str = ""
    caption: str = ""
    entities: tuple[_Entity, ...] = ()
    caption_entities: tuple[_Entity, ...] = ()
    message_thread_id: int | None = None
    is_topic_message: bool = False
    is_automatic_forward: bool = False
    reply_to_message: _Replied | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None
    photo: tuple[_File, ...] = ()
    document: _File | None = None
    audio: _File | None = None
    voice: _File | None = None
    video: _File | None = None
    video_note: _File | None = None
    animation: _File | None = None
    sticker: _File | None = None


class _Callback(_Model):
    id: str
    from_: _User = Field(alias="from")
    message: _Message | None = None
    data: str | None = None


class _Update(_Model):
    update_id: int
    message: _Message | None = None
    edited_message: _Message | None = None
    callback_query: _Callback | None = None


def number_of(update: object) -> int | None:
    """Return the number Telegram gave an update, or None if it is none of Telegram's."""
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None


def decode(update: object, *, channel: str, bot: Bot) -> Update | Ignored:
    """Translate one update of `getUpdates` or of a webhook."""
    try:
        parsed = _Update.model_validate(update)
    except (ValidationError, RecursionError):
        return Ignored(reason="a malformed update")
    key = f"{bot.id}:{parsed.update_id}"
    if parsed.callback_query:
        return _press(parsed.callback_query, key=key, channel=channel)
    message = parsed.message or parsed.edited_message
    if message is None:
        kinds = sorted(set(update) - {"update_id"}) if isinstance(update, dict) else []
        return Ignored(reason=f"an update of another kind: {', '.join(map(str, kinds))[:80] or 'empty'}")
    moved = _moved(message, key=key, channel=channel)
    return moved or _spoken(message, key=key, channel=channel, bot=bot, edited=parsed.message is None)


def _press(press: _Callback, *, key: str, channel: str) -> Press | Ignored:
    if press.message is None or press.data is None:
        return Ignored(reason="a press of a button that is not ours")
    return Press(
        key=key,
        address=_address(press.message, channel),
        author=_person(press.from_),
        data=_clean(press.data),
        token=_clean(press.id),
        room=_room(press.message.chat),
        platform_id=str(press.message.message_id),
    )


def _moved(message: _Message, *, key: str, channel: str) -> Moved | None:
    """A group that became a supergroup says so in both rooms."""
    here = str(message.chat.id)
    if message.migrate_to_chat_id:
        old, new = here, str(message.migrate_to_chat_id)
    elif message.migrate_from_chat_id:
        old, new = str(message.migrate_from_chat_id), here
    else:
        return None
    return Moved(key=key, old=Address(channel=channel, room=old), new=Address(channel=channel, room=new))


def _spoken(message: _Message, *, key: str, channel: str, bot: Bot, edited: bool) -> Message | Ignored:
    author = _author(message)
    if author is None or message.is_automatic_forward or message.chat.type == "channel":
        return Ignored(reason="a post of a channel")
    if author.id == bot.id:
        return Ignored(reason="our own message")
    text, mentioned = _without_mention(_text(message), message, bot)
    command = _COMMAND.match(text)
    if command and command[2] and command[2].lower() != bot.username.lower():
        return Ignored(reason="a command for another bot")
    if command and command[2]:
        text, mentioned = f"/{command[1]}{text[command.end() :]}", True
    attachments = _attachments(message)
    if not text and not attachments and not mentioned:
        return Ignored(reason="a message with neither text nor file")
    return Message(
        key=key,
        address=_address(message, channel),
        author=author,
        text=text,
        sent_at=datetime.fromtimestamp(message.edit_date or message.date, UTC),
        room=_room(message.chat),
        mentions_bot=mentioned or _answers(message, bot),
        edited=edited,
        attachments=attachments,
        platform_id=str(message.message_id),
    )


def _address(message: _Message, channel: str) -> Address:
    """The thread is a forum topic's; other threads of replies are no place of their own."""
    thread = (
        str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else None
    )
    return Address(channel=channel, room=str(message.chat.id), thread=thread)


def _room(chat: _Chat) -> Room:
    return Room.DIRECT if chat.type == "private" else Room.GROUP


def _author(message: _Message) -> Author | None:
    """An anonymous administrator and a linked channel speak as a chat; its id is theirs."""
    if message.sender_chat:
        return Author(id=str(message.sender_chat.id), name=_clean(message.sender_chat.title or ""))
    return _person(message.from_) if message.from_ else None


def _person(user: _User) -> Author:
    name = " ".join(part for part in (user.first_name, user.last_name) if part)
    return Author(id=str(user.id), name=_clean(name or user.username or ""), is_bot=user.is_bot)


def _text(message: _Message) -> str:
    emoji = message.sticker.emoji if message.sticker else None
    return _clean(message.text or message.caption or emoji or "").strip()


def _clean(text: str) -> str:
    """No store takes half a character, and PostgreSQL no NUL."""
    return encodable(text).replace("\0", "\ufffd")


def _without_mention(text: str, message: _Message, bot: Bot) -> tuple[str, bool]:
    """Drop a mention of the bot from the start; say whether one stands anywhere."""
    name = (
        re.compile(rf"(?<![\w@/])@{re.escape(bot.username)}(?!\w)", re.IGNORECASE) if bot.username else None
    )
    entities = message.entities or message.caption_entities
    by_id = any(entity.user and str(entity.user.id) == bot.id for entity in entities)
    if name is None or not name.search(text):
        return text, by_id
    start = name.match(text)
    return (text[start.end() :].lstrip(" ,:\n\t") if start else text), True


def _answers(message: _Message, bot: Bot) -> bool:
    """Whether it replies to the bot. In a topic, each message replies to the one that opened the topic."""
    replied = message.reply_to_message
    if replied is None or replied.from_ is None or replied.forum_topic_created is not None:
        return False
    return str(replied.from_.id) == bot.id


def _attachments(message: _Message) -> tuple[Attachment, ...]:
    found: list[Attachment] = []
    if message.photo:
        found.append(_attachment(message.photo[-1], f"photo-{message.message_id}.jpg", "image/jpeg"))
    for kind, (extension, media_type) in _FILES.items():
        file: _File | None = getattr(message, kind)
        if file and not (kind == "document" and message.animation):
            found.append(_attachment(file, f"{kind}-{message.message_id}{extension}", media_type))
    if message.sticker:
        extension, media_type = _sticker_type(message.sticker)
        found.append(_attachment(message.sticker, f"sticker-{message.message_id}{extension}", media_type))
    return tuple(found)


_FILES = {
    "document": ("", "application/octet-stream"),
    "audio": (".mp3", "audio/mpeg"),
    "voice": (".ogg", "audio/ogg"),
    "video": (".mp4", "video/mp4"),
    "video_note": (".mp4", "video/mp4"),
    "animation": (".mp4", "video/mp4"),
}


def _sticker_type(sticker: _File) -> tuple[str, str]:
    if sticker.is_animated:
        return ".tgs", "application/x-tgsticker"
    return (".webm", "video/webm") if sticker.is_video else (".webp", "image/webp")


def _attachment(file: _File, name: str, media_type: str) -> Attachment:
    given = _clean(file.file_name or "").replace("\\", "/").rpartition("/")[2].strip()
    return Attachment(
        name=given if given not in {"", ".", ".."} else name,
        media_type=_clean(file.mime_type or media_type),
        size=max(0, file.file_size or 0),
        ref=_clean(file.file_id),
    )


def target(address: Address) -> dict[str, Any]:
    """Return the parameters that say where."""
    thread = {"message_thread_id": address.thread} if address.thread else {}
    return {"chat_id": address.room, **thread}


def keyboard(buttons: tuple[Button, ...]) -> dict[str, Any]:
    """Return one row of buttons under a message, or nothing."""
    row = [{"text": button.label, "callback_data": button.data} for button in buttons]
    return {"reply_markup": {"inline_keyboard": [row]}} if row else {}


def wording(text: str, entities: tuple[Mapping[str, Any], ...] = ()) -> dict[str, Any]:
    """Return the parameters of what is said; links are not fetched for a preview."""
    said: dict[str, Any] = {"text": encodable(text), "link_preview_options": {"is_disabled": True}}
    return {**said, "entities": list(entities)} if entities else said


def encodable(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 can carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def reply_parameters(reply: Reply) -> dict[str, Any]:
    """Return what ties an answer to a message; it is sent even if that message is gone."""
    if reply.reply_to is None or not reply.reply_to.isdecimal():
        return {}
    return {"reply_parameters": {"message_id": int(reply.reply_to), "allow_sending_without_reply": True}}
