"""Discord's words into ours and ours into Discord's; pure.

An event is what the gateway dispatches, `{"t": name, "d": …}`; an interaction that was posted is wrapped the
same way. `d["channel"]` says what kind of place it was said in: interactions bring it, and the inbox adds it
to messages, which do not. A thread is a channel of its own at Discord; here it is a thread of its parent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from channels.message import (
    Address,
    Attachment,
    Author,
    Button,
    Ignored,
    Message,
    Press,
    Reply,
    Room,
    Update,
)

EPOCH = 1_420_070_400_000
"""Discord's ids count milliseconds from the first second of 2015."""

THREADS = frozenset({10, 11, 12})
PRIVATE = frozenset({1, 3})
SPOKEN = frozenset({0, 19})
"""Kinds of message that people write: a plain one and a reply."""

COMMAND, BUTTON = 2, 3
"""Kinds of interaction."""

WORDS, QUESTION = "dovecote", "ask"
"""Our slash commands: `/dovecote stop` is `/stop`, `/ask` says its text as it is."""

ROW = 5
MOST_ROWS = 5
LABEL_LIMIT = 80
NO_PREVIEW = 4
"""The flag that keeps Discord from fetching links."""

SAY = 4
"""The first reaction to an interaction that says something."""

ONLY_YOU = 64
"""The flag of a message that only the person who pressed sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """Who we are at Discord."""

    id: str
    username: str = ""
    application_id: str = ""


Id = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


class _User(_Model):
    id: Id
    username: str = ""
    global_name: str | None = None
    bot: bool = False


class _Member(_Model):
    nick: str | None = None
    user: _User | None = None


class _Place(_Model):
    id: Id
    type: int = 0
    parent_id: Id | None = None


class _File(_Model):
    id: Id
    filename: str = ""
    content_type: str | None = None
    size: int = 0


class _Replied(_Model):
    author: _User | None = None


class _Message(_Model):
    id: Id
    channel_id: Id
    guild_id: Id | None = None
    type: int = 0
    author: _User
    member: _Member | None = None
    webhook_id: Id | None = None
    content: str = ""
    edited_timestamp: str | None = None
    mentions: tuple[_User, ...] = ()
    attachments: tuple[_File, ...] = ()
    referenced_message: _Replied | None = None
    channel: _Place | None = None


class _Option(_Model):
    name: str = ""
    value: str | int | float | bool | None = None


class _Asked(_Model):
    name: str = ""
    custom_id: str = ""
    options: tuple[_Option, ...] = ()


class _Pressed(_Model):
    id: Id


class _Interaction(_Model):
    id: Id
    application_id: Id
    type: int
    token: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.~=-]{1,1000}$")]
    guild_id: Id | None = None
    channel_id: Id | None = None
    channel: _Place | None = None
    member: _Member | None = None
    user: _User | None = None
    data: _Asked | None = None
    message: _Pressed | None = None


def decode(update: object, *, channel: str, bot: Bot) -> Update | Ignored:
    """Translate one event of the gateway, or one interaction."""
    name = update.get("t") if isinstance(update, dict) else None
    raw = update.get("d") if isinstance(update, dict) else None
    try:
        if name in {"MESSAGE_CREATE", "MESSAGE_UPDATE"}:
            edited = name == "MESSAGE_UPDATE"
            return _spoken(_Message.model_validate(raw), channel=channel, bot=bot, edited=edited)
        if name == "INTERACTION_CREATE":
            return _interaction(_Interaction.model_validate(raw), channel=channel, bot=bot)
    except (ValidationError, RecursionError):
        return Ignored(reason=f"a malformed {name}")
    return Ignored(reason=f"an event of another kind: {str(name)[:80]}")


def moment(snowflake: str) -> datetime:
    """Return when an id was given out."""
    return datetime.fromtimestamp(((int(snowflake) >> 22) + EPOCH) / 1000, UTC)


def snowflake(when: datetime) -> int:
    """Return the smallest id of a moment."""
    return max(0, int(when.timestamp() * 1000) - EPOCH) << 22


def _spoken(message: _Message, *, channel: str, bot: Bot, edited: bool) -> Message | Ignored:
    if message.author.id == bot.id:
        return Ignored(reason="our own message")
    if message.type not in SPOKEN:
        return Ignored(reason="a notice of Discord")
    if edited and not message.edited_timestamp:
        return Ignored(reason="a message that only got its preview")
    text, mentioned = _text(message, bot)
    attachments = tuple(_attachment(message, file) for file in message.attachments)
    if not text and not attachments and not mentioned:
        return Ignored(reason="a message with neither text nor file (or without the message content intent)")
    suffix = f":{_clean(message.edited_timestamp or '')}" if edited else ""
    replied = message.referenced_message.author if message.referenced_message else None
    return Message(
        key=f"{bot.id}:{message.id}{suffix}",
        address=_address(message.channel, message.channel_id, channel),
        author=_author(message.author, message.member, is_bot=message.webhook_id is not None),
        text=text,
        sent_at=moment(message.id),
        room=Room.GROUP if message.guild_id else Room.DIRECT,
        mentions_bot=mentioned or (replied is not None and replied.id == bot.id),
        edited=edited,
        attachments=attachments,
        platform_id=message.id,
    )


def _interaction(asked: _Interaction, *, channel: str, bot: Bot) -> Message | Press | Ignored:
    place = asked.channel_id or (asked.channel.id if asked.channel else None)
    person = asked.user or (asked.member.user if asked.member else None)
    if place is None or person is None or asked.data is None:
        return Ignored(reason="an interaction from nowhere")
    address = _address(asked.channel, place, channel)
    author = _author(person, asked.member)
    room = Room.GROUP if asked.guild_id else Room.DIRECT
    key = f"{bot.id}:{asked.id}"
    if asked.type == BUTTON and asked.message and asked.data.custom_id:
        return Press(
            key=key,
            address=address,
            author=author,
            data=_clean(asked.data.custom_id),
            token=f"{asked.application_id}/{asked.id}/{asked.token}",
            room=room,
            platform_id=asked.message.id,
        )
    text = _command(asked.data) if asked.type == COMMAND else None
    if text is None:
        return Ignored(reason="an interaction that is not ours")
    return Message(
        key=key,
        address=address,
        author=author,
        text=text,
        sent_at=moment(asked.id),
        room=room,
        mentions_bot=True,
    )


def _command(asked: _Asked) -> str | None:
    """Return what a slash command says, or None for one that is not ours."""
    given = next((option.value for option in asked.options if isinstance(option.value, str)), "")
    words = _clean(given).strip()
    if asked.name == QUESTION:
        return words or None
    if asked.name != WORDS:
        return None
    return words if words.startswith(("/", "!")) else f"/{words or 'help'}"


def _address(place: _Place | None, channel_id: str, channel: str) -> Address:
    if place is not None and place.type in THREADS and place.parent_id:
        return Address(channel=channel, room=place.parent_id, thread=channel_id)
    return Address(channel=channel, room=channel_id)


def _author(user: _User, member: _Member | None, *, is_bot: bool = False) -> Author:
    nick = member.nick if member else None
    return Author(
        id=user.id, name=_clean(nick or user.global_name or user.username), is_bot=user.bot or is_bot
    )


def _text(message: _Message, bot: Bot) -> tuple[str, bool]:
    """Drop a mention of the bot from the start, name other people; say whether the bot is mentioned."""
    text = _clean(message.content).strip()
    ours = re.compile(rf"<@!?{bot.id}>")
    mentioned = bool(ours.search(text)) or any(user.id == bot.id for user in message.mentions)
    start = ours.match(text)
    text = text[start.end() :].lstrip(" ,:\n\t") if start else text
    names = {user.id: _clean(user.global_name or user.username) for user in message.mentions}
    names[bot.id] = bot.username
    return re.sub(r"<@!?([0-9]{1,20})>", lambda found: _named(found, names), text), mentioned


def _named(found: re.Match[str], names: Mapping[str, str]) -> str:
    name = names.get(found[1])
    return f"@{name}" if name else found[0]


def _attachment(message: _Message, file: _File) -> Attachment:
    """The reference names the message: addresses of files end, and are asked for again."""
    given = _clean(file.filename).replace("\\", "/").rpartition("/")[2].strip()
    return Attachment(
        name=given if given not in {"", ".", ".."} else f"file-{file.id}",
        media_type=_clean(file.content_type or "application/octet-stream").partition(";")[0],
        size=max(0, file.size),
        ref=f"{message.channel_id}/{message.id}/{file.id}",
    )


def _clean(text: str) -> str:
    """No store takes half a character, and PostgreSQL no NUL."""
    return encodable(text).replace("\0", "\ufffd")


def encodable(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 can carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def place(address: Address) -> str:
    """Return the id of the channel to speak in."""
    return address.thread or address.room


def said(text: str, buttons: tuple[Button, ...]) -> dict[str, Any]:
    """Return the fields of what is said. Nobody is ever notified by a mention in it."""
    return {"content": encodable(text), "allowed_mentions": {"parse": []}, "components": rows(buttons)}


def rows(buttons: tuple[Button, ...]) -> list[dict[str, Any]]:
    """Return buttons in rows of five; an empty list takes earlier ones away."""
    made = [
        {"type": 2, "style": 2, "label": button.label[:LABEL_LIMIT], "custom_id": button.data}
        for button in buttons[: ROW * MOST_ROWS]
    ]
    return [{"type": 1, "components": made[first : first + ROW]} for first in range(0, len(made), ROW)]


def once(key: str) -> dict[str, Any]:
    """Return the fields by which Discord recognises a repeated send; a nonce has at most 25 characters."""
    return {"nonce": key, "enforce_nonce": True}


def answering(reply: Reply) -> dict[str, Any]:
    """Return what ties an answer to a message; it is sent even if that message is gone."""
    if reply.reply_to is None or not reply.reply_to.isdecimal():
        return {}
    return {"message_reference": {"message_id": reply.reply_to, "fail_if_not_exists": False}}


def commands() -> tuple[dict[str, Any], ...]:
    """Return our slash commands, as they are registered."""
    words = {"type": 3, "name": "words", "description": "A command: stop, new, status, jobs, help …"}
    question = {
        "type": 3,
        "name": "question",
        "description": "What you want to know or have done",
        "required": True,
    }
    return (
        {"type": 1, "name": WORDS, "description": "Give the bot a command", "options": [words]},
        {"type": 1, "name": QUESTION, "description": "Ask the bot", "options": [question]},
    )
