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
from channels.discord.payloads import Bot, snowflake_time
from channels.discord.text import parse_custom_id, replace_surrogates
from channels.message import (
    Address,
    Attachment,
    Author,
    ButtonPress,
    Command,
    IgnoredUpdate,
    Message,
    Reaction,
    RoomKind,
    Update,
)

THREAD_TYPES = frozenset({10, 11, 12})
PRIVATE_TYPES = frozenset({1, 3})
MESSAGE_TYPES = frozenset({0, 19})
"""Kinds of message that people write: a plain one and a reply."""

COMMAND, BUTTON, MODAL = 2, 3, 5
"""Kinds of interaction."""


@dataclass(frozen=True, slots=True)
class _EventContext:
    """For whom an event is read, and what the event is beside its content."""

    channel: str
    bot: Bot
    event_type: str
    event_number: str

    def key(self, *parts: object) -> str:
        return ":".join([self.bot.id, *(_clean(str(part)) for part in parts)])


def decode(update: object, *, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    """Translate one event of the gateway, or one interaction."""
    event = update if isinstance(update, dict) else {}
    name = str(event.get("t"))[:80]
    read = _DECODERS.get(name)
    if read is None:
        return IgnoredUpdate(reason=f"an event of another kind: {name}")
    number = f"{event.get('session') or ''}:{event.get('s') or ''}"[:200]
    try:
        return read(event.get("d"), _EventContext(channel, bot, name, number))
    except (ValidationError, RecursionError):
        return IgnoredUpdate(reason=f"a malformed {name}")


def button_to_prompt(interaction: Mapping[str, Any]) -> str | None:
    """Return the id of the pressed button if it asks for words first."""
    asked = interaction.get("data")
    custom = asked.get("custom_id") if isinstance(asked, dict) else None
    pressed = interaction.get("type") == BUTTON and isinstance(custom, str)
    return str(custom) if pressed and parse_custom_id(str(custom))[1] else None


def _message_created(raw: object, context: _EventContext) -> Message | Command | IgnoredUpdate:
    message = payloads.Message.model_validate(raw)
    unwanted = _ignore_reason(message, context.bot)
    if unwanted:
        return IgnoredUpdate(reason=unwanted)
    text, mentioned, addressed = _text(message, context.bot)
    order = _parse_command(text, addressed=addressed) if addressed or not message.guild_id else None
    if order and not message.attachments:
        return Command(
            key=context.key(message.id),
            address=_address(message.channel, message.channel_id, message.guild_id, context.channel),
            author=_author(message.author, message.member, is_bot=message.webhook_id is not None),
            name=order[0],
            rest=order[1],
            sent_at=snowflake_time(message.id),
            room=_room_kind(message.guild_id),
            platform_id=message.id,
        )
    return _message(message, context, text, mentioned=mentioned)


def _message_edited(raw: object, context: _EventContext) -> Message | IgnoredUpdate:
    if isinstance(raw, dict) and not ("content" in raw and raw.get("edited_timestamp")):
        return IgnoredUpdate(reason="a message that only got its preview")
    message = payloads.Message.model_validate(raw)
    unwanted = _ignore_reason(message, context.bot)
    if unwanted:
        return IgnoredUpdate(reason=unwanted)
    text, mentioned, _ = _text(message, context.bot)
    return _message(message, context, text, mentioned=mentioned, edited=True)


def _ignore_reason(message: payloads.Message, bot: Bot) -> str:
    if message.author.id == bot.id:
        return "our own message"
    return "" if message.type in MESSAGE_TYPES else "a notice of Discord"


def _parse_command(text: str, *, addressed: bool) -> tuple[str, str] | None:
    """Return the order in a text: with a slash, or as bare words after a mention."""
    return commands.parse_slash(text) or (commands.parse_words(text) if addressed else None)


def _message(
    message: payloads.Message, context: _EventContext, text: str, *, mentioned: bool, edited: bool = False
) -> Message | IgnoredUpdate:
    attachments = tuple(_attachment(message, file) for file in message.attachments)
    if not text and not attachments and not mentioned:
        return IgnoredUpdate(
            reason="a message with neither text nor file (or without the message content intent)"
        )
    replied = message.referenced_message.author if message.referenced_message else None
    return Message(
        key=context.key(message.id, *([message.edited_timestamp] if edited else [])),
        address=_address(message.channel, message.channel_id, message.guild_id, context.channel),
        author=_author(message.author, message.member, is_bot=message.webhook_id is not None),
        text=text,
        sent_at=snowflake_time(message.id),
        room=_room_kind(message.guild_id),
        mentions_bot=mentioned or (replied is not None and replied.id == context.bot.id),
        edited=edited,
        attachments=attachments,
        platform_id=message.id,
    )


def _reaction(raw: object, context: _EventContext) -> Reaction | IgnoredUpdate:
    reaction = payloads.MessageReaction.model_validate(raw)
    if reaction.user_id == context.bot.id:
        return IgnoredUpdate(reason="our own reaction")
    emoji, added = _clean(reaction.emoji.name or ""), context.event_type == "MESSAGE_REACTION_ADD"
    user = (
        reaction.member.user
        if reaction.member and reaction.member.user
        else payloads.User(id=reaction.user_id)
    )
    sign = f"{emoji}:{reaction.emoji.id}" if reaction.emoji.id else emoji
    word = "added" if added else "removed"
    return Reaction(
        key=context.key(reaction.message_id, reaction.user_id, sign, word, context.event_number),
        address=_address(reaction.channel, reaction.channel_id, reaction.guild_id, context.channel),
        author=_author(user, reaction.member),
        emoji=sign,
        added=added,
        platform_id=reaction.message_id,
        room=_room_kind(reaction.guild_id),
    )


def _interaction(raw: object, context: _EventContext) -> Message | Command | ButtonPress | IgnoredUpdate:
    asked = payloads.Interaction.model_validate(raw)
    place = asked.channel_id or (asked.channel.id if asked.channel else None)
    person = asked.user or (asked.member.user if asked.member else None)
    if place is None or person is None or asked.data is None:
        return IgnoredUpdate(reason="an interaction from nowhere")
    address = _address(asked.channel, place, asked.guild_id, context.channel)
    who = _InteractionContext(
        asked, asked.data, address, _author(person, asked.member), context.key(asked.id)
    )
    if asked.type == COMMAND:
        return _slash_command(who)
    if asked.type in {BUTTON, MODAL} and asked.message and asked.data.custom_id:
        return _button_press(who, asked.message.id)
    return IgnoredUpdate(reason="an interaction that is not ours")


@dataclass(frozen=True, slots=True)
class _InteractionContext:
    """An interaction with what was found out about it."""

    interaction: payloads.Interaction
    data: payloads.InteractionData
    address: Address
    author: Author
    key: str

    @property
    def token(self) -> str:
        """What an answer needs."""
        return f"{self.interaction.application_id}/{self.interaction.id}/{self.interaction.token}"


def _slash_command(context: _InteractionContext) -> Message | Command | IgnoredUpdate:
    name, sent_at, room = (
        context.data.name,
        snowflake_time(context.interaction.id),
        _room_kind(context.interaction.guild_id),
    )
    given = next((option.value for option in context.data.options if isinstance(option.value, str)), "")
    words = _clean(given).strip()
    if name in commands.COMMANDS:
        return Command(
            key=context.key,
            address=context.address,
            author=context.author,
            name=name,
            rest=words,
            sent_at=sent_at,
            room=room,
            token=context.token,
        )
    if name != commands.ASK_COMMAND or not words:
        return IgnoredUpdate(reason="an interaction that is not ours")
    return Message(
        key=context.key,
        address=context.address,
        author=context.author,
        text=words,
        sent_at=sent_at,
        room=room,
        mentions_bot=True,
    )


def _button_press(context: _InteractionContext, message: str) -> ButtonPress | IgnoredUpdate:
    chosen, prompt = parse_custom_id(_clean(context.data.custom_id))
    submitted = context.interaction.type == MODAL
    if prompt and not submitted:
        return IgnoredUpdate(reason="a button that asks for words first")
    return ButtonPress(
        key=context.key,
        address=context.address,
        author=context.author,
        data=chosen,
        token=context.token,
        comment=_modal_text(context.data) if submitted else "",
        room=_room_kind(context.interaction.guild_id),
        platform_id=message,
    )


def _modal_text(content: payloads.InteractionData) -> str:
    """Return what was written into the modal's fields."""
    fields = [
        field
        for row in content.components
        for field in (*row.components, *([row.component] if row.component else []))
    ]
    return "\n".join(_clean(field.value).strip() for field in fields if field.value.strip())


_DECODERS: Mapping[str, Callable[[object, _EventContext], Update | IgnoredUpdate]] = {
    "MESSAGE_CREATE": _message_created,
    "MESSAGE_UPDATE": _message_edited,
    "MESSAGE_REACTION_ADD": _reaction,
    "MESSAGE_REACTION_REMOVE": _reaction,
    "INTERACTION_CREATE": _interaction,
}


def _room_kind(guild: str | None) -> RoomKind:
    return RoomKind.GROUP if guild else RoomKind.DIRECT


def _address(location: payloads.Channel | None, channel_id: str, guild: str | None, channel: str) -> Address:
    """The server's id tells later whether the bot was thrown out or only lacks a permission."""
    extras = {"guild": guild} if guild else {}
    if location is not None and location.type in THREAD_TYPES and location.parent_id:
        return Address(channel=channel, room=location.parent_id, thread=channel_id, extras=extras)
    return Address(channel=channel, room=channel_id, extras=extras)


def _author(user: payloads.User, member: payloads.Member | None, *, is_bot: bool = False) -> Author:
    nick = member.nick if member else None
    return Author(
        id=user.id, name=_clean(nick or user.global_name or user.username), is_bot=user.bot or is_bot
    )


def _text(message: payloads.Message, bot: Bot) -> tuple[str, bool, bool]:
    """Drop a mention of the bot from the start, name other people; say whether it is mentioned, and first."""
    text = _clean(message.content).strip()
    ours = re.compile(rf"<@!?{bot.id}>")
    mentioned = bool(ours.search(text)) or any(user.id == bot.id for user in message.mentions)
    start = ours.match(text)
    text = text[start.end() :].lstrip(" ,:\n\t") if start else text
    names = {user.id: _clean(user.global_name or user.username) for user in message.mentions}
    names[bot.id] = bot.username
    named = re.sub(r"<@!?([0-9]{1,20})>", lambda found: _mention_name(found, names), text)
    return named, mentioned, start is not None


def _mention_name(found: re.Match[str], names: Mapping[str, str]) -> str:
    name = names.get(found[1])
    return f"@{name}" if name else found[0]


def _attachment(message: payloads.Message, file: payloads.Attachment) -> Attachment:
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
    return replace_surrogates(text).replace("\0", "\ufffd")
