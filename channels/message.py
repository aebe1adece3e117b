"""The words every platform is translated into and out of; all values are frozen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class RoomKind(StrEnum):
    """Who can read what is said in a room."""

    DIRECT = "direct"
    GROUP = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where in a chat to speak: all that a reply needs, even days later.

    `channel` is the id of the channel record (`chn_…`), `room` and `thread` the platform's own ids as
    strings, `extras` the few further strings a platform needs (never authorisation, never secrets).
    """

    channel: str
    room: str
    thread: str | None = None
    extras: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the address as JSON that `load` turns back into an equal address."""
        return json.dumps(
            {"channel": self.channel, "room": self.room, "thread": self.thread, "extras": dict(self.extras)},
            sort_keys=True,
        )

    @classmethod
    def decode(cls, text: str) -> Address:
        """Return the address that `dump` wrote; raises ValueError or KeyError for anything else."""
        raw = json.loads(text)
        return cls(channel=raw["channel"], room=raw["room"], thread=raw["thread"], extras=dict(raw["extras"]))

    @property
    def destination(self) -> str:
        """The unit of order and rate: one room of one channel, whatever the thread."""
        return json.dumps([self.channel, self.room])

    @staticmethod
    def room_of(destination: str) -> str:
        """Return the room of a destination."""
        return str(json.loads(destination)[1])

    @property
    def key(self) -> str:
        """The unit of conversation: one thread of one room of one channel."""
        return json.dumps([self.channel, self.room, self.thread])


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who spoke, by the platform's immutable id; `name` is for showing only, never for deciding."""

    id: str
    name: str = ""
    is_bot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file a person sent: `ref` fetches it through the channel; `size` is in bytes, 0 when unknown."""

    name: str
    media_type: str
    size: int
    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a person said. `key` names the platform's event: equal keys are one message.

    `mentions_bot` is also true for a reply to the bot and for a command addressed to it. `text` is plain
    text, a mention of the bot at its start removed. `edited`: the person changed the message `platform_id`,
    and this is what it says now (`key` is another one for every change).
    """

    key: str
    address: Address
    author: Author
    text: str
    sent_at: datetime
    room: RoomKind = RoomKind.DIRECT
    mentions_bot: bool = False
    edited: bool = False
    attachments: tuple[Attachment, ...] = ()
    platform_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A person gave an order in the bot's own vocabulary: `/name words…`, however the platform spells it.

    `name` is lower-case and without a slash, whether we know the word or not; `rest` is what followed it.
    `token` answers it once where the platform wants an answer to the command itself (a slash command).
    """

    key: str
    address: Address
    author: Author
    name: str
    rest: str
    sent_at: datetime
    room: RoomKind = RoomKind.DIRECT
    token: str = ""
    platform_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ButtonPress:
    """A person pressed a button of ours. `data` is the button's, `token` answers the press once.

    `comment` is what the person wrote when the button asked for words (Button.prompt).
    """

    key: str
    address: Address
    author: Author
    data: str
    token: str
    comment: str = ""
    room: RoomKind = RoomKind.DIRECT
    platform_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """A person put a sign under a message, or took it away; `platform_id` names the message."""

    key: str
    address: Address
    author: Author
    emoji: str
    added: bool
    platform_id: str
    room: RoomKind = RoomKind.DIRECT


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomMigrated:
    """A room has a new id: everything addressed to `old` belongs to `new` from now on."""

    key: str
    old: Address
    new: Address


Update = Message | Command | ButtonPress | Reaction | RoomMigrated


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredUpdate:
    """A platform event that is no update for us, with the reason in plain words (for the log)."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A choice under a reply; `data` is at most 64 bytes of ASCII.

    With a `prompt` the platform asks the person for a few words before the press is told (Feature PROMPTS).
    """

    label: str
    data: str
    prompt: str = ""


class StatusReaction(StrEnum):
    """What a reaction of ours says about a message."""

    SEEN = "seen"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftText:
    """A reply while it is still being said: `text` is all of it so far, as CommonMark.

    `platform_id` and `shown` are what the call before this one returned and showed; `key` is the same in
    every call of one reply; `asker` is the platform's id of the person it answers.
    """

    key: str
    text: str
    previous_text: str = ""
    platform_id: str | None = None
    recipient_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What we say: CommonMark text within the channel's length limit, perhaps with one row of buttons.

    `key` identifies the delivery: the same on every attempt, at most 64 ASCII characters. A platform that
    can recognise a repeated send is given it.
    """

    text: str
    key: str
    buttons: tuple[Button, ...] = ()
    reply_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file we send: the bytes, a bare file name and a media type."""

    name: str
    media_type: str
    content: bytes
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """The platform took it: `platform_id` names the message there."""

    platform_id: str
