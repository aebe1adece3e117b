"""Discord's words into ours; pure.

An event is what the gateway dispatches, `{"t": name, "d": …}`; an interaction that was posted is wrapped the
same way. `d["channel"]` says what kind of place it was said in: interactions bring it, and the inbox adds it
to messages and reactions, which do not. A thread is a channel of its own at Discord; here it is a thread of
its parent. The other way, ours into Discord's, is in `speech`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from channels.discord import commands, payloads
from channels.discord.payloads import Bot, moment
from channels.discord.text import encodable, parts_of
from channels.message import (
    Address,
    Attachment,
    Author,
    Command,
    Ignored,
    Message,
    Press,
    Reaction,
    Room,
    Update,
)

THREADS = frozenset({10, 11, 12})
PRIVATE = frozenset({1, 3})
SPOKEN = frozenset({0, 19})
"""Kinds of message that people write: a plain one and a reply."""

COMMAND, BUTTON, MODAL = 2, 3, 5
"""Kinds of interaction."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """For whom an event is read, and what the event is beside its content."""

    channel: str
    bot: Bot
    name: str
    number: str

    def key(self, *parts: object) -> str:
        return ":".join([self.bot.id, *(_clean(str(part)) for part in parts)])


def decode(update: object, *, channel: str, bot: Bot) -> Update | Ignored:
    """Translate one event of the gateway, or one interaction."""
    event = update if isinstance(update, dict) else {}
    name = str(event.get("t"))[:80]
    read = _READERS.get(name)
    if read is None:
        return Ignored(reason=f"an event of another kind: {name}")
    number = f"{event.get('session') or ''}:{event.get('s') or ''}"[:200]
    try:
        return read(event.get("d"), _Reading(channel, bot, name, number))
    except (ValidationError, RecursionError):
        return Ignored(reason=f"a malformed {name}")


def prompting(interaction: Mapping[str, Any]) -> str | None:
    """Return the id of the pressed button if it asks for words first."""
    asked = interaction.get("data")
    custom = asked.get("custom_id") if isinstance(asked, dict) else None
    pressed = interaction.get("type") == BUTTON and isinstance(custom, str)
    return str(custom) if pressed and parts_of(str(custom))[1] else None


def _created(raw: object, reading: _Reading) -> Message | Command | Ignored:
    message = payloads.Said.model_validate(raw)
    unwanted = _unwanted(message, reading.bot)
    if unwanted:
        return Ignored(reason=unwanted)
    text, mentioned, addressed = _text(message, reading.bot)
    order = _order(text, addressed=addressed) if addressed or not message.guild_id else None
    if order and not message.attachments:
        return Command(
            key=reading.key(message.id),
            address=_address(message.channel, message.channel_id, message.guild_id, reading.channel),
            author=_author(message.author, message.member, is_bot=message.webhook_id is not None),
            name=order[0],
            rest=order[1],
            sent_at=moment(message.id),
            room=_room(message.guild_id),
            platform_id=message.id,
        )
    return _message(message, reading, text, mentioned=mentioned)


def _edited(raw: object, reading: _Reading) -> Message | Ignored:
    if isinstance(raw, dict) and not ("content" in raw and raw.get("edited_timestamp")):
        return Ignored(reason="a message that only got its preview")
    message = payloads.Said.model_validate(raw)
    unwanted = _unwanted(message, reading.bot)
    if unwanted:
        return Ignored(reason=unwanted)
    text, mentioned, _ = _text(message, reading.bot)
    return _message(message, reading, text, mentioned=mentioned, edited=True)


def _unwanted(message: payloads.Said, bot: Bot) -> str:
    if message.author.id == bot.id:
        return "our own message"
    return "" if message.type in SPOKEN else "a notice of Discord"


def _order(text: str, *, addressed: bool) -> tuple[str, str] | None:
    """Return the order in a text: with a slash, or as bare words after a mention."""
    return commands.slashed(text) or (commands.bare(text) if addressed else None)


def _message(
    message: payloads.Said, reading: _Reading, text: str, *, mentioned: bool, edited: bool = False
) -> Message | Ignored:
    attachments = tuple(_attachment(message, file) for file in message.attachments)
    if not text and not attachments and not mentioned:
        return Ignored(reason="a message with neither text nor file (or without the message content intent)")
    replied = message.referenced_message.author if message.referenced_message else None
    return Message(
        key=reading.key(message.id, *([message.edited_timestamp] if edited else [])),
        address=_address(message.channel, message.channel_id, message.guild_id, reading.channel),
        author=_author(message.author, message.member, is_bot=message.webhook_id is not None),
        text=text,
        sent_at=moment(message.id),
        room=_room(message.guild_id),
        mentions_bot=mentioned or (replied is not None and replied.id == reading.bot.id),
        edited=edited,
        attachments=attachments,
        platform_id=message.id,
    )


def _reacted(raw: object, reading: _Reading) -> Reaction | Ignored:
    reaction = payloads.Reacted.model_validate(raw)
    if reaction.user_id == reading.bot.id:
        return Ignored(reason="our own reaction")
    emoji, added = _clean(reaction.emoji.name or ""), reading.name == "MESSAGE_REACTION_ADD"
    user = (
        reaction.member.user
        if reaction.member and reaction.member.user
        else payloads.User(id=reaction.user_id)
    )
    sign = f"{emoji}:{reaction.emoji.id}" if reaction.emoji.id else emoji
    word = "added" if added else "removed"
    return Reaction(
        key=reading.key(reaction.message_id, reaction.user_id, sign, word, reading.number),
        address=_address(reaction.channel, reaction.channel_id, reaction.guild_id, reading.channel),
        author=_author(user, reaction.member),
        emoji=sign,
        added=added,
        platform_id=reaction.message_id,
        room=_room(reaction.guild_id),
    )


def _interaction(raw: object, reading: _Reading) -> Message | Command | Press | Ignored:
    asked = payloads.Interaction.model_validate(raw)
    place = asked.channel_id or (asked.channel.id if asked.channel else None)
    person = asked.user or (asked.member.user if asked.member else None)
    if place is None or person is None or asked.data is None:
        return Ignored(reason="an interaction from nowhere")
    address = _address(asked.channel, place, asked.guild_id, reading.channel)
    who = _Asker(asked, asked.data, address, _author(person, asked.member), reading.key(asked.id))
    if asked.type == COMMAND:
        return _commanded(who)
    if asked.type in {BUTTON, MODAL} and asked.message and asked.data.custom_id:
        return _pressed(who, asked.message.id)
    return Ignored(reason="an interaction that is not ours")


@dataclass(frozen=True, slots=True)
class _Asker:
    """An interaction with what was found out about it."""

    asked: payloads.Interaction
    content: payloads.Asked
    address: Address
    author: Author
    key: str

    @property
    def token(self) -> str:
        """What an answer needs."""
        return f"{self.asked.application_id}/{self.asked.id}/{self.asked.token}"


def _commanded(who: _Asker) -> Message | Command | Ignored:
    name, sent_at, room = who.content.name, moment(who.asked.id), _room(who.asked.guild_id)
    given = next((option.value for option in who.content.options if isinstance(option.value, str)), "")
    words = _clean(given).strip()
    if name in commands.ORDERS:
        return Command(
            key=who.key,
            address=who.address,
            author=who.author,
            name=name,
            rest=words,
            sent_at=sent_at,
            room=room,
            token=who.token,
        )
    if name != commands.QUESTION or not words:
        return Ignored(reason="an interaction that is not ours")
    return Message(
        key=who.key,
        address=who.address,
        author=who.author,
        text=words,
        sent_at=sent_at,
        room=room,
        mentions_bot=True,
    )


def _pressed(who: _Asker, message: str) -> Press | Ignored:
    chosen, prompt = parts_of(_clean(who.content.custom_id))
    submitted = who.asked.type == MODAL
    if prompt and not submitted:
        return Ignored(reason="a button that asks for words first")
    return Press(
        key=who.key,
        address=who.address,
        author=who.author,
        data=chosen,
        token=who.token,
        comment=_written(who.content) if submitted else "",
        room=_room(who.asked.guild_id),
        platform_id=message,
    )


def _written(content: payloads.Asked) -> str:
    """Return what was written into the modal's fields."""
    fields = [
        field
        for row in content.components
        for field in (*row.components, *([row.component] if row.component else []))
    ]
    return "\n".join(_clean(field.value).strip() for field in fields if field.value.strip())


_READERS: Mapping[str, Callable[[object, _Reading], Update | Ignored]] = {
    "MESSAGE_CREATE": _created,
    "MESSAGE_UPDATE": _edited,
    "MESSAGE_REACTION_ADD": _reacted,
    "MESSAGE_REACTION_REMOVE": _reacted,
    "INTERACTION_CREATE": _interaction,
}


def _room(guild: str | None) -> Room:
    return Room.GROUP if guild else Room.DIRECT


def _address(place: payloads.Place | None, channel_id: str, guild: str | None, channel: str) -> Address:
    """The server's id tells later whether the bot was thrown out or only lacks a permission."""
    extras = {"guild": guild} if guild else {}
    if place is not None and place.type in THREADS and place.parent_id:
        return Address(channel=channel, room=place.parent_id, thread=channel_id, extras=extras)
    return Address(channel=channel, room=channel_id, extras=extras)


def _author(user: payloads.User, member: payloads.Member | None, *, is_bot: bool = False) -> Author:
    nick = member.nick if member else None
    return Author(
        id=user.id, name=_clean(nick or user.global_name or user.username), is_bot=user.bot or is_bot
    )


def _text(message: payloads.Said, bot: Bot) -> tuple[str, bool, bool]:
    """Drop a mention of the bot from the start, name other people; say whether it is mentioned, and first."""
    text = _clean(message.content).strip()
    ours = re.compile(rf"<@!?{bot.id}>")
    mentioned = bool(ours.search(text)) or any(user.id == bot.id for user in message.mentions)
    start = ours.match(text)
    text = text[start.end() :].lstrip(" ,:\n\t") if start else text
    names = {user.id: _clean(user.global_name or user.username) for user in message.mentions}
    names[bot.id] = bot.username
    named = re.sub(r"<@!?([0-9]{1,20})>", lambda found: _named(found, names), text)
    return named, mentioned, start is not None


def _named(found: re.Match[str], names: Mapping[str, str]) -> str:
    name = names.get(found[1])
    return f"@{name}" if name else found[0]


def _attachment(message: payloads.Said, file: payloads.Enclosed) -> Attachment:
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
