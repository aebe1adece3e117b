"""Decode Slack's envelopes; pure.

`decode` expects an envelope as Socket Mode sends it, `{"type": …, "payload": …}`; HTTP posts are converted to
that form first. A message and the app_mention of the same message have the same key.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from channels.inbox.commands import parse_mentioned, parse_slash
from channels.inbox.text import append_cards, append_forwarded, append_links, bare_file_name, clean, mappings
from channels.message import (
    Address,
    Attachment,
    Author,
    Command,
    IgnoredUpdate,
    Message,
    MessageDeleted,
    PermissionsChanged,
    Reaction,
    RoomKind,
    RoomMigrated,
    RoomReopened,
    Update,
)
from channels.slack import text as slack_text
from channels.slack.addresses import address_of, parse_timestamp, room_kind_of
from channels.slack.payloads import Bot, EventCallback, File, MessageEvent, ReactionEvent, SlashCommand
from channels.slack.receive import interactions

__all__ = ["Bot", "decode"]

_MESSAGE_SUBTYPES = {None, "file_share", "thread_broadcast", "me_message", "bot_message"}
_REOPENED_SUBTYPES = {"channel_unarchive", "group_unarchive"}
_JOINED_SUBTYPES = {"channel_join", "group_join"}
_APP_CONTENT = "text", "blocks", "attachments"
_UNAVAILABLE_MODES = {"tombstone", "hidden_by_limit", "external", "list"}
_CANVAS = "application/vnd.slack-docs"
"""The media type of a canvas, which is downloaded as HTML."""


def decode(update: object, *, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    """Decode one envelope of Socket Mode, or of HTTP in the same form; Bolt has found its workspace."""
    kind, payload = (update.get("type"), update.get("payload")) if isinstance(update, dict) else (None, None)
    try:
        match kind:
            case "events_api":
                return _event(EventCallback.model_validate(payload), channel, bot)
            case "slash_commands":
                return _slash_command(SlashCommand.model_validate(payload), channel, bot)
            case "interactive":
                return interactions.decode(payload, channel, bot)
    except (ValidationError, RecursionError):
        return IgnoredUpdate(reason=f"a malformed {kind}")
    return IgnoredUpdate(reason="an envelope of another kind")


def _event(callback: EventCallback, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    kind, team = callback.event.get("type"), bot.team or callback.team_id
    if kind not in ("message", "app_mention"):
        return _other_event(callback.event, team, channel, bot)
    event = MessageEvent.model_validate(callback.event)
    if event.subtype == "message_changed":
        return _message_changed(event, team, channel, bot)
    if event.subtype == "message_deleted" and event.deleted_ts:
        return _message_deleted(event, event.deleted_ts, f"{team}:{event.channel}", channel, bot)
    if event.subtype in _REOPENED_SUBTYPES or (event.subtype in _JOINED_SUBTYPES and event.user == bot.id):
        key = f"{team}:reopened:{event.channel}:{event.ts}"
        return RoomReopened(key=clean(key), address=Address(channel=channel, room=clean(event.channel)))
    if event.subtype not in _MESSAGE_SUBTYPES:
        return IgnoredUpdate(reason=f"a message of the subtype {event.subtype[:40]}" if event.subtype else "")
    return _message(event, f"{team}:{event.channel}:{event.ts}", channel, bot)


def _other_event(event: dict[str, Any], team: str, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    match event.get("type"):
        case "reaction_added" | "reaction_removed":
            return _reaction(ReactionEvent.model_validate(event), team, channel, bot)
        case "channel_id_changed":
            return _room_migrated(event, team, channel)
        case "team_access_granted":  # to an app that an organisation installed
            return PermissionsChanged(key=f"{team}:granted:{clean(event.get('event_ts'))}", channel=channel)
    return IgnoredUpdate(reason=f"an event of another kind: {str(event.get('type'))[:40]}")


def _room_migrated(event: dict[str, Any], team: str, channel: str) -> RoomMigrated:
    """Decode the new id of a private channel, which it gets when it is shared with another workspace."""
    old, new = clean(event.get("old_channel_id")), clean(event.get("new_channel_id"))
    before, now = Address(channel=channel, room=old), Address(channel=channel, room=new)
    return RoomMigrated(key=f"{team}:moved:{old}:{new}", old=before, new=now)


def _reaction(event: ReactionEvent, team: str, channel: str, bot: Bot) -> Reaction | IgnoredUpdate:
    if event.user == bot.id:
        return IgnoredUpdate(reason="the bot's own reaction")
    if event.item.type != "message":
        return IgnoredUpdate(reason="a reaction to something other than a message")
    room, message = room_kind_of(event.item.channel, None), f"{event.item.channel}:{event.item.ts}"
    return Reaction(
        key=clean(f"{team}:{event.type}:{message}:{event.user}:{event.reaction}:{event.event_ts}"),
        address=address_of(channel, event.item.channel, None, event.item.ts),
        author=Author(id=clean(event.user)),
        emoji=clean(event.reaction.partition("::")[0]),
        added=event.type == "reaction_added",
        platform_id=event.item.ts,
        room=room,
        may_be_bot=True,
    )


def _message_changed(event: MessageEvent, team: str, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    """Decode a person's edit, or any change of an app's message, which Slack does not mark as edited.

    Slack also reports unfurled links and replies as changes, and the deletion of a message with replies: a
    tombstone takes its place.
    """
    message, previous = event.message or {}, event.previous_message or {}
    outer = {"channel": event.channel, "channel_type": event.channel_type, "type": "message"}
    inner = MessageEvent.model_validate({"ts": event.ts, **message, **outer})
    if inner.subtype == "tombstone":
        return _message_deleted(event, inner.ts, f"{team}:{event.channel}", channel, bot)
    edit = inner.edited if previous.get("edited") != message.get("edited") else None
    stamp, shown = (event.ts, _APP_CONTENT) if inner.bot_id else (edit.ts if edit else None, ("text",))
    if stamp is None:
        return IgnoredUpdate(reason="a change that is not an edit")
    if "text" in previous and all(previous.get(one) == message.get(one) for one in shown):
        return IgnoredUpdate(reason="a change that leaves the text as it was")
    return _message(inner, f"{team}:{event.channel}:{inner.ts}:{stamp}", channel, bot, edited_at=stamp)


def _message_deleted(
    event: MessageEvent, deleted: str, place: str, channel: str, bot: Bot
) -> MessageDeleted | IgnoredUpdate:
    previous = event.previous_message or {}
    if previous.get("user") == bot.id:
        return IgnoredUpdate(reason="a deletion of the bot's own message")
    return MessageDeleted(
        key=clean(f"{place}:{deleted}:deleted"),
        address=address_of(channel, event.channel, clean(previous.get("thread_ts")) or None, deleted),
        platform_id=deleted,
    )


def _message(
    event: MessageEvent, key: str, channel: str, bot: Bot, *, edited_at: str | None = None
) -> Message | Command | IgnoredUpdate:
    if event.user == bot.id or (bot.bot_id and event.bot_id == bot.bot_id):
        return IgnoredUpdate(reason="the bot's own message")
    author = event.user or event.bot_id
    if not author:
        return IgnoredUpdate(reason="a message without an author")
    raw, mentioned = slack_text.strip_mention(clean(event.text or ""), bot.id)
    text = slack_text.to_plain_text(raw).strip()
    forwarded = [one for one in mappings(event.attachments) if one.get("is_share") is True]
    shared = (File.model_validate(file) for one in forwarded for file in mappings(one.get("files")))
    files = (*(event.files or ()), *shared)
    attachments = tuple(_attachment(file) for file in files if file.mode not in _UNAVAILABLE_MODES)
    external = [(file.name, file.url_private) for file in files if file.mode == "external"]
    lists = [(file.title or file.name, file.permalink) for file in files if file.mode == "list"]
    words = (slack_text.to_plain_text(clean(one.get("text"))) for one in forwarded)
    shown = append_cards(text, event.bot_id and [event.blocks, event.attachments], slack_text.to_plain_text)
    content = append_forwarded(append_links(shown, external + lists), words)
    if not content and not attachments and not mentioned:
        return IgnoredUpdate(reason="a message with neither text nor file")
    room = room_kind_of(event.channel, event.channel_type)
    address = address_of(channel, event.channel, event.thread_ts, event.ts)
    writer = Author(id=clean(author), is_bot=event.bot_id is not None)
    common: dict[str, Any] = {"key": clean(key), "address": address, "author": writer, "room": room}
    common |= {"sent_at": parse_timestamp(edited_at or event.ts), "platform_id": event.ts}
    command = parse_mentioned(text) if mentioned else parse_slash(text) if room is RoomKind.DIRECT else None
    if command is not None and edited_at is None and not attachments:
        return Command(name=command[0], rest=command[1], **common)
    common |= {"edited": edited_at is not None, "attachments": attachments}
    return Message(text=content, mentions_bot=mentioned, **common)


def _slash_command(slash: SlashCommand, channel: str, bot: Bot) -> Message | Command:
    common: dict[str, Any] = {
        "key": clean(f"{slash.team_id or bot.team}:slash:{slash.trigger_id}"),
        "address": Address(channel=channel, room=clean(slash.channel_id)),
        "author": Author(id=clean(slash.user_id)),
        "sent_at": parse_timestamp(_trigger_seconds(slash.trigger_id)),
        "room": room_kind_of(slash.channel_id, "im" if slash.channel_name == "directmessage" else None),
    }
    text = slack_text.to_plain_text(clean(slash.text)).strip()
    command = slack_text.parse_command(text) if text else ("help", "")
    if command is None:
        return Message(text=text, mentions_bot=True, **common)
    return Command(name=command[0], rest=command[1], token=clean(slash.response_url), **common)


def _trigger_seconds(trigger: str) -> str:
    """Return when a slash command was given: its trigger_id begins with the second."""
    seconds = trigger.partition(".")[0]
    return seconds if seconds.isdecimal() and seconds.isascii() and len(seconds) == 10 else "0"  # noqa: PLR2004


def _attachment(file: File) -> Attachment:
    name, is_canvas = bare_file_name(file.name, otherwise=f"file-{clean(file.id)}"), file.mimetype == _CANVAS
    return Attachment(
        name=f"{name}.html" if is_canvas else name,
        media_type="text/html" if is_canvas else clean(file.mimetype or "application/octet-stream"),
        size=max(0, file.size or 0),
        ref=clean(file.url_private_download or file.url_private or file.id),
    )
