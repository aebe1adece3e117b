"""Decode Telegram's updates; pure.

`payloads` declares only the fields that are read: invalid content elsewhere does not matter, and invalid
content in a declared field gives an IgnoredUpdate, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import ValidationError

from channels.inbox.commands import as_command
from channels.inbox.text import append_forwarded, clean, insert_links, mapping
from channels.message import (
    Address,
    Author,
    ButtonPress,
    Command,
    IgnoredUpdate,
    Message,
    QuotedMessage,
    Reaction,
    RoomKind,
    RoomMigrated,
    RoomReopened,
    Update,
)
from channels.receiving import descriptions as words
from channels.telegram import commands, payloads
from channels.telegram.commands import CommandText
from channels.telegram.payloads import COMMENTS, DIRECT_TOPIC, Bot
from channels.telegram.receive.attachments import attachments

_WRITES = {"member", "administrator", "creator"}
_ALBUM = re.compile(r"[\w-]{1,64}", re.ASCII)


def update_id_of(update: object) -> int | None:
    """Return an update's number, or None if it is not an update."""
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None


def album_of(update: object) -> str | None:
    """Return the id of the album an update belongs to; each picture is an update of its own."""
    album, room = mapping(mapping(update).get("message")).get("media_group_id"), room_of(update)
    if room is None or not isinstance(album, str) or not _ALBUM.fullmatch(album):
        return None
    return f"{room}:{album}"


def room_of(update: object) -> int | None:
    """Return the id of the room a message is in."""
    room = mapping(mapping(mapping(update).get("message")).get("chat")).get("id")
    return room if isinstance(room, int) else None


def decode(update: object, *, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    """Decode one update from `getUpdates` or from a webhook."""
    try:
        parsed = payloads.Update.model_validate(update)
    except (ValidationError, RecursionError):
        return IgnoredUpdate(reason="a malformed update")
    key = f"{bot.id}:{parsed.update_id}"
    if parsed.callback_query:
        return _press(parsed.callback_query, key=key, channel=channel)
    if parsed.message_reaction:
        return _reaction(parsed.message_reaction, key=key, channel=channel, bot=bot)
    if parsed.my_chat_member:
        return _membership(parsed.my_chat_member, key=key, channel=channel)
    message = parsed.message or parsed.edited_message
    if message is None:
        kinds = ", ".join(sorted(set(update) - {"update_id"})) if isinstance(update, dict) else ""
        return IgnoredUpdate(reason=f"an update of another kind: {kinds[:80] or 'empty'}")
    change = _room_change(message, key=key, channel=channel)
    return change or _message(message, key=key, channel=channel, bot=bot, edited=parsed.message is None)


def decode_album(updates: Sequence[object], *, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    """Decode the updates of one album, in order, into one message with the key of the first."""
    decoded = [decode(update, channel=channel, bot=bot) for update in updates]
    messages = [one for one in decoded if isinstance(one, Message)]
    if len(messages) < 2:  # noqa: PLR2004 - the others are malformed or not for us
        return (messages or decoded)[0]
    texts = dict.fromkeys(message.text for message in messages if message.text)
    return replace(
        messages[0],
        text="\n".join(texts),
        mentions_bot=any(message.mentions_bot for message in messages),
        attachments=tuple(attachment for message in messages for attachment in message.attachments),
    )


def find_chain(update: object) -> tuple[int, bool]:
    """Return the first message of a message's chain of replies, and whether the update shows what that is.

    A reply to a reply does not. It is a comment if the first message is a channel's post.
    """
    parsed = payloads.Update.model_validate(update)
    press = parsed.callback_query
    message = parsed.message or parsed.edited_message or (press.message if press else None)
    if message is None or message.message_thread_id is None:
        return (message.message_id if message else 0), True
    replied = message.reply_to_message
    is_shown = replied is not None and replied.message_id == message.message_thread_id
    return message.message_thread_id, is_shown


def _press(press: payloads.CallbackQuery, *, key: str, channel: str) -> ButtonPress | IgnoredUpdate:
    if press.message is None or press.data is None:
        return IgnoredUpdate(reason="a press of another program's button")
    return ButtonPress(
        key=key,
        address=_address(press.message, channel),
        author=_user_author(press.from_),
        data=clean(press.data),
        token=clean(press.id),
        room=_room_kind(press.message.chat),
        platform_id=str(press.message.message_id),
    )


def _reaction(
    update: payloads.MessageReactionUpdated, *, key: str, channel: str, bot: Bot
) -> Reaction | IgnoredUpdate:
    """Return the added reaction, else the removed one. Telegram does not name the topic."""
    author = _author(update)
    if author is None:
        return IgnoredUpdate(reason="a reaction without a user")
    if author.id == bot.id:
        return IgnoredUpdate(reason="the bot's own reaction")
    before, now = _emoji(update.old_reaction), _emoji(update.new_reaction)
    came, went = [one for one in now if one not in before], [one for one in before if one not in now]
    if not came and not went:
        return IgnoredUpdate(reason="a reaction that is not an emoji")
    return Reaction(
        key=key,
        address=Address(channel=channel, room=str(update.chat.id)),
        author=author,
        emoji=clean((came or went)[0]),
        added=bool(came),
        platform_id=str(update.message_id),
        room=_room_kind(update.chat),
    )


def _emoji(reactions: Sequence[payloads.ReactionType]) -> list[str]:
    return [sign.emoji for sign in reactions if sign.type == "emoji" and sign.emoji]


def _room_change(message: payloads.Message, *, key: str, channel: str) -> RoomMigrated | RoomReopened | None:
    """Decode that a topic is no longer closed, or a group's upgrade, of which both rooms receive a notice."""
    here = message.chat.id
    if message.forum_topic_reopened is not None:
        return RoomReopened(key=key, address=_address(message, channel))
    old, new = (
        Address(channel=channel, room=str(room or here))
        for room in (message.migrate_from_chat_id, message.migrate_to_chat_id)
    )
    return None if old == new else RoomMigrated(key=key, old=old, new=new, keeps_messages=False)


def _membership(
    change: payloads.ChatMemberUpdated, *, key: str, channel: str
) -> RoomReopened | IgnoredUpdate:
    """Decode that a person has unblocked the bot, or that it may write in a group or channel."""
    bot = change.new_chat_member
    if bot.status not in _WRITES and not (bot.status == "restricted" and bot.can_send_messages):
        return IgnoredUpdate(reason="the bot may not write in the chat any more")
    return RoomReopened(key=key, address=Address(channel=channel, room=str(change.chat.id)))


def _message(
    message: payloads.Message, *, key: str, channel: str, bot: Bot, edited: bool
) -> Message | Command | IgnoredUpdate:
    author = _author(message)
    if author is None or message.is_automatic_forward or message.chat.type == "channel":
        return IgnoredUpdate(reason="a channel post")
    if author.id == bot.id:
        return IgnoredUpdate(reason="the bot's own message")
    if edited and message.location:
        return IgnoredUpdate(reason="a movement of a live location")
    text, mentioned = _without_mention(_text(message), message, bot)
    if message.forward_origin:
        text, mentioned = append_forwarded("", [_text(message)]), False
    command = commands.parse_slash(text)
    if command and command.bot_username and command.bot_username.lower() != bot.username.lower():
        return IgnoredUpdate(reason="a command for another bot")
    if command and command.bot_username:
        text, mentioned = command.text, True
    result = Message(
        key=key,
        address=_address(message, channel),
        author=author,
        text=text,
        sent_at=datetime.fromtimestamp(message.edit_date or message.date, UTC),
        room=_room_kind(message.chat),
        mentions_bot=mentioned or _is_reply_to_bot(message, bot),
        edited=edited,
        attachments=attachments(message),
        platform_id=str(message.message_id),
        quoted=_quoted(message, bot),
    )
    if not result.text and not result.attachments and not result.mentions_bot:
        return IgnoredUpdate(reason="a message with neither text nor file")
    return _as_command(result, command or (commands.parse_words(text) if mentioned else None))


def _as_command(message: Message, command: CommandText | None) -> Message | Command:
    """Return the command; edits, files and unknown commands to a whole group stay messages."""
    if command is None or message.edited or message.attachments:
        return message
    if not command.is_known and message.room is RoomKind.GROUP and not message.mentions_bot:
        return message
    return as_command(message, command.name, command.rest)


def _address(message: payloads.Message, channel: str) -> Address:
    """Return the address; topics and the comments on a post are threads, other chains of replies are not."""
    thread = str(message.message_thread_id or "") if message.is_topic_message else None
    replied = message.reply_to_message
    if not thread and replied is not None and replied.is_automatic_forward:
        thread = f"{COMMENTS}{replied.message_id}"
    if message.direct_messages_topic:
        thread = f"{DIRECT_TOPIC}{message.direct_messages_topic.topic_id}"
    return Address(channel=channel, room=str(message.chat.id), thread=thread or None)


def _room_kind(chat: payloads.Chat) -> RoomKind:
    return RoomKind.DIRECT if chat.type == "private" else RoomKind.GROUP


def _author(message: payloads.Content | payloads.MessageReactionUpdated) -> Author | None:
    """Return the author; anonymous administrators and linked channels have the id of their chat."""
    if message.sender_chat:
        return _chat_author(message.sender_chat)
    return _user_author(message.from_) if message.from_ else None


def _chat_author(chat: payloads.Chat) -> Author:
    return Author(id=str(chat.id), name=clean(chat.title or ""))


def _user_author(user: payloads.User) -> Author:
    name = " ".join(part for part in (user.first_name, user.last_name) if part)
    return Author(id=str(user.id), name=clean(name or user.username or ""), is_bot=user.is_bot)


def _text(message: payloads.Content) -> str:
    emoji = message.sticker.emoji if message.sticker else None
    links = ((one.offset, one.length, one.url) for one in message.entities or message.caption_entities)
    words = insert_links(message.text or message.caption, links)
    return clean(words or emoji or _describe_shared(message)).strip()


def _describe_shared(message: payloads.Content) -> str:
    """Describe shared content that is not a file."""
    if message.venue:
        place = f"{message.location.latitude}, {message.location.longitude}" if message.location else ""
        return words.describe_venue(message.venue.title, message.venue.address, place)
    if message.location:
        return words.describe_location(message.location.latitude, message.location.longitude)
    if message.dice:
        return f"{message.dice.emoji} {message.dice.value}"
    if message.contact:
        names = (message.contact.first_name, message.contact.last_name)
        return words.describe_contact(names, message.contact.phone_number)
    return _describe_offered(message)


def _describe_offered(message: payloads.Content) -> str:
    """Describe what people fill in or open in the platform's own apps."""
    if message.poll:
        return words.describe_poll(message.poll.question, (one.text for one in message.poll.options))
    if message.checklist:
        tasks = ((one.text, one.completion_date) for one in message.checklist.tasks)
        return words.describe_checklist(message.checklist.title, tasks)
    if offer := message.game or message.invoice:
        return words.describe_offer("Game" if message.game else "Invoice", offer.title)
    return words.describe_unshown_kind(kind for kind in words.UNSHOWN if getattr(message, kind))


def _without_mention(text: str, message: payloads.Message, bot: Bot) -> tuple[str, bool]:
    """Remove a mention of the bot from the start; also return whether it is mentioned anywhere."""
    name = (
        re.compile(rf"(?<![\w@/])@{re.escape(bot.username)}(?!\w)", re.IGNORECASE) if bot.username else None
    )
    entities = message.entities or message.caption_entities
    by_id = any(entity.user and str(entity.user.id) == bot.id for entity in entities)
    if name is None or not name.search(text):
        return text, by_id
    start = name.match(text)
    return (text[start.end() :].lstrip(" ,:\n\t") if start else text), True


def _quoted(message: payloads.Message, bot: Bot) -> QuotedMessage | None:
    """Return the message that is replied to with its files, or the part of it that the user chose."""
    replied = message.reply_to_message
    story = payloads.Content(story=message.reply_to_story) if message.reply_to_story else None
    if other := message.external_reply or story:  # of another chat
        text, files = _text(message.quote or other), attachments(other)
        return QuotedMessage(author=Author(id=""), text=text, attachments=files)
    if replied is None or replied.forum_topic_created is not None:
        return None
    author, text = _author(replied) or Author(id=""), _text(message.quote or replied)
    files = attachments(replied) if author.id != bot.id else ()
    platform_id = str(replied.message_id or "")
    return QuotedMessage(author=author, text=text, platform_id=platform_id, attachments=files)


def _is_reply_to_bot(message: payloads.Message, bot: Bot) -> bool:
    """Return whether it replies to the bot; a topic's messages reply to the one that opened it."""
    replied = message.reply_to_message
    if replied is None or replied.from_ is None or replied.forum_topic_created is not None:
        return False
    return str(replied.from_.id) == bot.id
