"""Decode Discord's events and interactions; pure.

An event has the form the gateway dispatches, `{"t": name, "d": …}`; a posted interaction is wrapped in the
same form. `d["channel"]` describes the channel: interactions contain it, and the event handler adds it to
messages and reactions. A thread is a channel of its own at Discord; here it is a thread of its parent.
`send.rendering` is the other direction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from channels.discord import commands, payloads
from channels.discord.payloads import Bot, snowflake_time
from channels.discord.text import parse_custom_id
from channels.inbox.commands import DESCRIPTIONS
from channels.inbox.text import (
    UNKNOWN_MEDIA_TYPE,
    append_cards,
    append_forwarded,
    bare_file_name,
    clean,
    mapping,
    mappings,
    walk,
)
from channels.message import (
    Address,
    Attachment,
    Author,
    ButtonPress,
    Command,
    IgnoredUpdate,
    Message,
    MessageDeleted,
    PermissionsChanged,
    QuotedMessage,
    Reaction,
    RoomKind,
    RoomReopened,
    Update,
)
from channels.receiving.descriptions import describe_poll, describe_stickers

THREAD_TYPES = frozenset({10, 11, 12})
PRIVATE_THREAD = 12
MESSAGE_TYPES = frozenset({0, 19})
"""Types of messages that users write: a plain one and a reply."""

PERMISSION_CHANGES = ("GUILD_ROLE_UPDATE", "GUILD_ROLE_DELETE", "GUILD_MEMBER_UPDATE")
"""Events after which the bot may have other permissions in a whole server."""

COMMAND, BUTTON, MODAL = 2, 3, 5
"""Types of interactions."""

FOREIGN = "an interaction where the bot is not a member"


@dataclass(frozen=True, slots=True)
class _EventContext:
    """The channel and bot for which an event is decoded, and the event's type and number."""

    channel: str
    bot: Bot
    event_type: str
    event_number: str

    def key(self, *parts: object) -> str:
        return ":".join([self.bot.id, *(clean(str(part)) for part in parts)])


def decode(update: object, *, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    """Decode one event of the gateway, or one interaction."""
    event = update if isinstance(update, dict) else {}
    name = str(event.get("t"))[:80]
    decoder = _DECODERS.get(name)
    if decoder is None:
        return IgnoredUpdate(reason=f"an event of another kind: {name}")
    number = f"{event.get('session') or ''}:{event.get('s') or ''}"[:200]
    try:
        return decoder(event.get("d"), _EventContext(channel, bot, name, number))
    except (ValidationError, RecursionError):
        return IgnoredUpdate(reason=f"a malformed {name}")


def button_to_prompt(interaction: Mapping[str, Any]) -> str | None:
    """Return the id of the pressed button if the button has a prompt."""
    data = interaction.get("data")
    custom = data.get("custom_id") if isinstance(data, dict) else None
    pressed = interaction.get("type") == BUTTON and isinstance(custom, str)
    return str(custom) if pressed and parse_custom_id(str(custom))[1] else None


def _message_created(raw: object, context: _EventContext) -> Message | Command | IgnoredUpdate:
    message = payloads.Message.model_validate(raw)
    reason = _ignore_reason(message, context.bot)
    if reason:
        return IgnoredUpdate(reason=reason)
    text, mentioned, addressed = _text(message, context.bot)
    command = _parse_command(text, addressed=addressed) if addressed or not message.guild_id else None
    if command and not message.attachments:
        return Command(
            key=context.key(message.id),
            address=_address(message.channel, message.channel_id, message.guild_id, context.channel),
            author=_author(message.author, message.member, is_bot=message.webhook_id is not None),
            name=command[0],
            rest=command[1],
            sent_at=snowflake_time(message.id),
            room=_room_kind(message.guild_id),
            platform_id=message.id,
        )
    return _message(message, context, text, mentioned=mentioned)


def _message_edited(raw: object, context: _EventContext) -> Message | IgnoredUpdate:
    if isinstance(raw, dict) and not ("content" in raw and raw.get("edited_timestamp")):
        return IgnoredUpdate(reason="a change that only adds a preview")
    message = payloads.Message.model_validate(raw)
    reason = _ignore_reason(message, context.bot)
    if reason:
        return IgnoredUpdate(reason=reason)
    text, mentioned, _ = _text(message, context.bot)
    return _message(message, context, text, mentioned=mentioned, edited=True)


def _message_deleted(raw: object, context: _EventContext) -> MessageDeleted:
    message = payloads.MessageDelete.model_validate(raw)
    return MessageDeleted(
        key=context.key(message.id, "deleted"),
        address=_address(message.channel, message.channel_id, message.guild_id, context.channel),
        platform_id=message.id,
    )


def _channel_changed(raw: object, context: _EventContext) -> RoomReopened:
    """Decode a change of a channel: it may let the bot write there again."""
    changed = payloads.Channel.model_validate(raw)
    key = context.key(changed.id, "changed", context.event_number)
    return RoomReopened(key=key, address=_address(changed, changed.id, None, context.channel))


def _permissions_changed(raw: object, context: _EventContext) -> PermissionsChanged | IgnoredUpdate:
    """Decode a change of a role or of the bot's own roles: it may let the bot write in the server again."""
    event = payloads.GuildEvent.model_validate(raw)
    if event.user is not None and event.user.id != context.bot.id:
        return IgnoredUpdate(reason="a change of another member")
    key = context.key(event.guild_id, "permissions", context.event_number)
    return PermissionsChanged(key=key, channel=context.channel, extras={"guild": event.guild_id})


def _ignore_reason(message: payloads.Message, bot: Bot) -> str:
    if message.author.id == bot.id:
        return "the bot's own message"
    return "" if message.type in MESSAGE_TYPES else "a system message"


def _parse_command(text: str, *, addressed: bool) -> tuple[str, str] | None:
    """Return the command in a text: with a slash, or without one after a mention."""
    return commands.parse_slash(text) or (commands.parse_words(text) if addressed else None)


def _message(
    message: payloads.Message, context: _EventContext, text: str, *, mentioned: bool, edited: bool = False
) -> Message | IgnoredUpdate:
    attachments = _attachments(message.channel_id, message.id, message)
    text = "\n".join(filter(None, (text, _describe_shared(message))))
    author = _author(message.author, message.member, is_bot=message.webhook_id is not None)
    text = append_cards(text, message.embeds) if author.is_bot else text
    text = append_forwarded(text, _forwarded_texts(message))
    text = "\n\n".join(filter(None, (_title_of_post(message), text)))
    if not text and not attachments and not mentioned:
        return IgnoredUpdate(
            reason="a message with neither text nor file (or without the message content intent)"
        )
    replied = message.referenced_message.author if message.referenced_message else None
    return Message(
        key=context.key(message.id, *([message.edited_timestamp] if edited else [])),
        address=_address(message.channel, message.channel_id, message.guild_id, context.channel),
        author=author,
        text=text,
        sent_at=snowflake_time(message.id),
        room=_room_kind(message.guild_id),
        mentions_bot=mentioned or (replied is not None and replied.id == context.bot.id),
        edited=edited,
        attachments=attachments,
        platform_id=message.id,
        quoted=_quoted(message.referenced_message, message.channel_id, context.bot),
    )


def _title_of_post(message: payloads.Message) -> str:
    """Return the title of the forum post that a message begins, which has the message's id; "" else."""
    channel = message.channel
    return clean(channel.name).strip() if channel and message.id == message.channel_id else ""


def _quoted(replied: payloads.ReferencedMessage | None, channel_id: str, bot: Bot) -> QuotedMessage | None:
    if replied is None or replied.id is None:
        return None
    author = _author(replied.author, None) if replied.author else Author(id="")
    files = _attachments(channel_id, replied.id, replied) if author.id != bot.id else ()
    text = append_forwarded(_full_text(replied), _forwarded_texts(replied))
    return QuotedMessage(author=author, text=text, platform_id=replied.id, attachments=files)


def _reaction(raw: object, context: _EventContext) -> Reaction | IgnoredUpdate:
    reaction = payloads.MessageReaction.model_validate(raw)
    if reaction.user_id == context.bot.id:
        return IgnoredUpdate(reason="the bot's own reaction")
    emoji, added = clean(reaction.emoji.name or ""), context.event_type == "MESSAGE_REACTION_ADD"
    user = (reaction.member and reaction.member.user) or payloads.User(id=reaction.user_id)
    name = f"{emoji}:{reaction.emoji.id}" if reaction.emoji.id else emoji
    action = "added" if added else "removed"
    return Reaction(
        key=context.key(reaction.message_id, reaction.user_id, name, action, context.event_number),
        address=_address(reaction.channel, reaction.channel_id, reaction.guild_id, context.channel),
        author=_author(user, reaction.member),
        emoji=name,
        added=added,
        platform_id=reaction.message_id,
        room=_room_kind(reaction.guild_id),
    )


def _interaction(raw: object, context: _EventContext) -> Message | Command | ButtonPress | IgnoredUpdate:
    interaction = payloads.Interaction.model_validate(raw)
    channel_id = interaction.channel_id or (interaction.channel.id if interaction.channel else None)
    user = interaction.user or (interaction.member.user if interaction.member else None)
    if channel_id is None or user is None or interaction.data is None:
        return IgnoredUpdate(reason="an interaction without a channel, user or data")
    if interaction.is_foreign:
        return IgnoredUpdate(reason=FOREIGN)
    address = _address(interaction.channel, channel_id, interaction.guild_id, context.channel)
    details = _InteractionContext(
        interaction, interaction.data, address, _author(user, interaction.member), context.key(interaction.id)
    )
    if interaction.type == COMMAND:
        return _slash_command(details)
    if interaction.type in {BUTTON, MODAL} and interaction.message and interaction.data.custom_id:
        return _button_press(details, interaction.message.id)
    return IgnoredUpdate(reason="an interaction of another program")


@dataclass(frozen=True, slots=True)
class _InteractionContext:
    """An interaction with its content, address, author and key."""

    interaction: payloads.Interaction
    data: payloads.InteractionData
    address: Address
    author: Author
    key: str

    @property
    def token(self) -> str:
        """The token that answers the interaction."""
        return f"{self.interaction.application_id}/{self.interaction.id}/{self.interaction.token}"


def _slash_command(context: _InteractionContext) -> Message | Command | IgnoredUpdate:
    name = context.data.name
    common: dict[str, Any] = {
        "key": context.key,
        "address": context.address,
        "author": context.author,
        "sent_at": snowflake_time(context.interaction.id),
        "room": _room_kind(context.interaction.guild_id),
    }
    given = next((option.value for option in context.data.options if isinstance(option.value, str)), "")
    words = clean(given).strip()
    if name in DESCRIPTIONS:
        return Command(name=name, rest=words, token=context.token, **common)
    if name != commands.ASK_COMMAND or not words:
        return IgnoredUpdate(reason="an interaction of another program")
    return Message(text=words, mentions_bot=True, **common)


def _button_press(context: _InteractionContext, message: str) -> ButtonPress | IgnoredUpdate:
    chosen, prompt = parse_custom_id(clean(context.data.custom_id))
    submitted = context.interaction.type == MODAL
    if prompt and not submitted:
        return IgnoredUpdate(reason="a press that first asks for a comment")
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
    """Return the text entered into the modal's fields."""
    fields = [field for row in content.components for field in (*row.components, row.component) if field]
    return "\n".join(clean(field.value).strip() for field in fields if field.value.strip())


_DECODERS: Mapping[str, Callable[[object, _EventContext], Update | IgnoredUpdate]] = {
    **dict.fromkeys(("CHANNEL_UPDATE", "THREAD_UPDATE"), _channel_changed),
    **dict.fromkeys(PERMISSION_CHANGES, _permissions_changed),
    "MESSAGE_CREATE": _message_created,
    "MESSAGE_UPDATE": _message_edited,
    "MESSAGE_DELETE": _message_deleted,
    "MESSAGE_REACTION_ADD": _reaction,
    "MESSAGE_REACTION_REMOVE": _reaction,
    "INTERACTION_CREATE": _interaction,
}


def _room_kind(guild: str | None) -> RoomKind:
    return RoomKind.GROUP if guild else RoomKind.DIRECT


def _address(location: payloads.Channel | None, channel_id: str, guild: str | None, channel: str) -> Address:
    """Return the address; the server's id later tells a removed bot from a missing permission.

    Everyone who can read the channel can read a public thread.
    """
    extras = {"guild": guild} if guild else {}
    if location is not None and location.type in THREAD_TYPES and location.parent_id:
        extras |= {} if location.type == PRIVATE_THREAD else {"public_thread": "1"}
        return Address(channel=channel, room=location.parent_id, thread=channel_id, extras=extras)
    return Address(channel=channel, room=channel_id, extras=extras)


def _author(user: payloads.User, member: payloads.Member | None, *, is_bot: bool = False) -> Author:
    nick = member.nick if member else None
    return Author(
        id=user.id, name=clean(nick or user.global_name or user.username), is_bot=user.bot or is_bot
    )


def _text(message: payloads.Message, bot: Bot) -> tuple[str, bool, bool]:
    """Return the text with names for mentions, whether the bot is mentioned, and whether first."""
    text = clean(message.content).strip()
    if message.own_role:
        text = text.replace(f"<@&{message.own_role}>", f"<@{bot.id}>")
    mention = re.compile(rf"<@!?{bot.id}>")
    mentioned = bool(mention.search(text)) or any(user.id == bot.id for user in message.mentions)
    start = mention.match(text)
    text = text[start.end() :].lstrip(" ,:\n\t") if start else text
    names = {user.id: clean(user.global_name or user.username) for user in message.mentions}
    names[bot.id] = bot.username
    named_text = re.sub(r"<@!?([0-9]{1,20})>", lambda found: _mention_name(found, names), text)
    return named_text, mentioned, start is not None


def _mention_name(found: re.Match[str], names: Mapping[str, str]) -> str:
    name = names.get(found[1])
    return f"@{name}" if name else found[0]


def _describe_shared(message: payloads.Content) -> str:
    """Return the words for a message's poll, stickers and components, in lines; "" without them."""
    poll = mapping(message.poll)
    options = (_text_of(mapping(one).get("poll_media")) for one in mappings(poll.get("answers")))
    asked = describe_poll(_text_of(poll.get("question")), options) if poll else ""
    stickers = describe_stickers(clean(one.get("name")) for one in mappings(message.sticker_items))
    texts = (clean(one.get("content")) for one in walk(message.components, "components"))
    return "\n".join(filter(None, (asked, stickers, *texts)))


def _full_text(message: payloads.Content) -> str:
    """Return all words of a message; those of its embeds if it has no others, as programs write."""
    words = "\n".join(filter(None, (clean(message.content).strip(), _describe_shared(message))))
    shown = (clean(one.get(name)) for one in mappings(message.embeds) for name in ("title", "description"))
    return words or "\n".join(filter(None, shown))


def _text_of(media: object) -> str:
    return clean(mapping(media).get("text"))


def _forwarded_texts(message: payloads.PostedContent) -> Iterable[str]:
    return (_full_text(one.message) for one in message.message_snapshots)


def _attachments(channel_id: str, message_id: str, message: payloads.PostedContent) -> tuple[Attachment, ...]:
    """Return the files of a message and of what it forwards; `ref` names the message: file URLs expire."""
    contents = (message, *(one.message for one in message.message_snapshots))
    return tuple(
        Attachment(
            name=bare_file_name(file.filename, otherwise=f"file-{file.id}"),
            media_type=clean(file.content_type or UNKNOWN_MEDIA_TYPE).partition(";")[0],
            size=max(0, file.size),
            ref=f"{channel_id}/{message_id}/{file.id}",
        )
        for content in contents
        for file in content.attachments
    )
