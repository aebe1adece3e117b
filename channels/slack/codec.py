"""Slack's words into ours; pure.

`decode` takes an envelope as Socket Mode frames it, `{"type": …, "payload": …}`; what HTTP posts is put
into the same shape first. A message and the app_mention of the same message have the same key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from channels.message import Address, Attachment, Author, Ignored, Message, Press, Room, Update
from channels.slack import wording

_SPOKEN = {None, "file_share", "thread_broadcast", "me_message", "bot_message"}
_Id = Annotated[str, StringConstraints(min_length=1, max_length=255)]
_Stamp = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,11}(\.[0-9]{1,12})?$")]


def measure(text: str) -> int:
    """Count UTF-16 units of the text as it travels, with `&`, `<` and `>` escaped."""
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return units + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """Who we are at Slack: the bot's user, its bot id, and the workspace."""

    id: str
    bot_id: str = ""
    team: str = ""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class _Edited(_Model):
    ts: _Stamp


class _File(_Model):
    id: _Id
    name: str | None = None
    mimetype: str | None = None
    size: int | None = None
    mode: str | None = None
    url_private: str | None = None
    url_private_download: str | None = None


class _Event(_Model):
    type: str
    subtype: str | None = None
    channel: _Id
    channel_type: str | None = None
    user: str | None = None
    bot_id: str | None = None
    ts: _Stamp
    thread_ts: _Stamp | None = None
    text: str | None = None
    files: tuple[_File, ...] | None = None
    edited: _Edited | None = None
    message: dict[str, Any] | None = None
    previous_message: dict[str, Any] | None = None


class _Callback(_Model):
    team_id: str = ""
    event: dict[str, Any]


class _Slash(_Model):
    team_id: str = ""
    channel_id: _Id
    channel_name: str = ""
    user_id: _Id
    text: str = ""
    trigger_id: _Id


class _Named(_Model):
    id: _Id


class _Action(_Model):
    action_id: str = ""
    value: str | None = None
    action_ts: str = ""


class _Place(_Model):
    message_ts: _Stamp
    channel_id: str | None = None
    thread_ts: _Stamp | None = None


class _Interaction(_Model):
    type: str
    team: _Named | None = None
    user: _Named
    channel: _Named | None = None
    container: _Place
    message: dict[str, Any] = Field(default_factory=dict)
    actions: tuple[_Action, ...] = ()
    trigger_id: str = ""


def decode(update: object, *, channel: str, bot: Bot) -> Update | Ignored:
    """Translate one envelope of Socket Mode, or of HTTP in its shape."""
    kind, payload = (update.get("type"), update.get("payload")) if isinstance(update, dict) else (None, None)
    try:
        match kind:
            case "events_api":
                return _event(_Callback.model_validate(payload), channel, bot)
            case "slash_commands":
                return _slash(_Slash.model_validate(payload), channel, bot)
            case "interactive":
                return _press(payload, channel, bot)
    except (ValidationError, RecursionError):
        return Ignored(reason=f"a malformed or foreign {kind}")
    return Ignored(reason="an envelope of another kind")


def _event(callback: _Callback, channel: str, bot: Bot) -> Update | Ignored:
    if callback.event.get("type") not in ("message", "app_mention"):
        return Ignored(reason=f"an event of another kind: {str(callback.event.get('type'))[:40]}")
    event = _Event.model_validate(callback.event)
    team = callback.team_id or bot.team
    if event.subtype == "message_changed":
        return _changed(event, team, channel, bot)
    if event.subtype not in _SPOKEN:
        return Ignored(reason=f"a message of the subtype {event.subtype[:40]}" if event.subtype else "")
    return _spoken(event, f"{team}:{event.channel}:{event.ts}", channel, bot)


def _changed(event: _Event, team: str, channel: str, bot: Bot) -> Update | Ignored:
    """An edit by a person; Slack also tells of unfurled links and of replies in this way."""
    outer = {"channel": event.channel, "channel_type": event.channel_type, "type": "message"}
    inner = _Event.model_validate({"ts": event.ts, **(event.message or {}), **outer})
    before = (event.previous_message or {}).get("edited")
    if inner.edited is None or before == (event.message or {}).get("edited"):
        return Ignored(reason="a change that nobody typed")
    key = f"{team}:{event.channel}:{inner.ts}:{inner.edited.ts}"
    return _spoken(inner, key, channel, bot, edited_at=inner.edited.ts)


def _spoken(
    event: _Event, key: str, channel: str, bot: Bot, *, edited_at: str | None = None
) -> Message | Ignored:
    if event.user == bot.id or (bot.bot_id and event.bot_id == bot.bot_id):
        return Ignored(reason="our own message")
    author = event.user or event.bot_id
    if not author:
        return Ignored(reason="a message of nobody")
    raw, mentioned = wording.without_mention(wording.clean(event.text or ""), bot.id)
    text = wording.plain(raw).strip()
    attachments = tuple(_attachment(file) for file in event.files or () if _is_kept(file))
    if not text and not attachments and not mentioned:
        return Ignored(reason="a message with neither text nor file")
    room = _room(event.channel, event.channel_type)
    return Message(
        key=wording.clean(key),
        address=_address(channel, event.channel, room, event.thread_ts, event.ts),
        author=Author(id=wording.clean(author), is_bot=event.bot_id is not None),
        text=wording.as_command(text) if mentioned else text,
        sent_at=_moment(edited_at or event.ts),
        room=room,
        mentions_bot=mentioned,
        edited=edited_at is not None,
        attachments=attachments,
        platform_id=event.ts,
    )


def _slash(slash: _Slash, channel: str, bot: Bot) -> Message:
    direct = slash.channel_name == "directmessage"
    room = Room.DIRECT if direct else _room(slash.channel_id, None)
    seconds = slash.trigger_id.partition(".")[0]
    stamp = seconds if seconds.isdecimal() and seconds.isascii() and len(seconds) == 10 else "0"  # noqa: PLR2004
    return Message(
        key=wording.clean(f"{slash.team_id or bot.team}:slash:{slash.trigger_id}"),
        address=Address(channel=channel, room=wording.clean(slash.channel_id)),
        author=Author(id=wording.clean(slash.user_id)),
        text=wording.slash_text(wording.plain(wording.clean(slash.text))),
        sent_at=_moment(stamp),
        room=room,
        mentions_bot=True,
    )


def _press(payload: object, channel: str, bot: Bot) -> Press | Ignored:
    if not isinstance(payload, dict) or payload.get("type") != "block_actions":
        return Ignored(reason="an interaction of another kind")
    press = _Interaction.model_validate(payload)
    room_id = press.channel.id if press.channel else press.container.channel_id
    action = press.actions[0] if press.actions else None
    if room_id is None or action is None or action.value is None:
        return Ignored(reason="a press of a button that is not ours")
    room = _room(room_id, None)
    ts = press.container.message_ts
    thread = press.container.thread_ts or _thread_of(press.message)
    team = press.team.id if press.team else bot.team
    return Press(
        key=wording.clean(f"{team}:press:{room_id}:{ts}:{press.user.id}:{action.action_ts or action.value}"),
        address=_address(channel, room_id, room, thread, None),
        author=Author(id=wording.clean(press.user.id)),
        data=wording.clean(action.value),
        token=wording.clean(press.trigger_id),
        room=room,
        platform_id=ts,
    )


def _thread_of(message: dict[str, Any]) -> str | None:
    thread = message.get("thread_ts")
    return thread if isinstance(thread, str) else None


def _room(room: str, kind: str | None) -> Room:
    """A channel's kind is told in message events; elsewhere a private one is known by its letter."""
    direct = kind == "im" if kind else room.startswith("D")
    return Room.DIRECT if direct else Room.GROUP


def _address(channel: str, room_id: str, room: Room, thread: str | None, own: str | None) -> Address:
    """In a channel each message opens a thread; a private chat is one conversation, with threads in it."""
    opened = own if room is Room.GROUP else None
    return Address(channel=channel, room=wording.clean(room_id), thread=thread or opened)


def _moment(stamp: str) -> datetime:
    return datetime.fromtimestamp(float(stamp), UTC)


def _is_kept(file: _File) -> bool:
    return file.mode not in {"tombstone", "hidden_by_limit", "external"}


def _attachment(file: _File) -> Attachment:
    given = wording.clean(file.name or "").replace("\\", "/").rpartition("/")[2].strip()
    return Attachment(
        name=given if given not in {"", ".", ".."} else f"file-{wording.clean(file.id)}",
        media_type=wording.clean(file.mimetype or "application/octet-stream"),
        size=max(0, file.size or 0),
        ref=wording.clean(file.url_private_download or file.url_private or file.id),
    )
