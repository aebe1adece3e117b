"""Platform-neutral messages, addresses, updates and replies; all values are frozen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache


class RoomKind(StrEnum):
    """Who can read the messages of a room."""

    DIRECT = "direct"
    GROUP = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The place in a chat that a reply is sent to; it stays valid for days.

    `channel` is the id of the channel record (`chn_…`). `room` and `thread` are the platform's own ids as
    strings. `extras` holds further strings a platform needs, never permissions and never secrets.
    """

    channel: str
    room: str
    thread: str | None = None
    extras: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the address as JSON, for `decode`."""
        return json.dumps(
            {"channel": self.channel, "room": self.room, "thread": self.thread, "extras": dict(self.extras)},
            sort_keys=True,
        )

    @classmethod
    @lru_cache(maxsize=1024)
    def decode(cls, text: str) -> Address:
        """Return the address that `encode` wrote; raises ValueError or KeyError for anything else."""
        raw = json.loads(text)
        return cls(channel=raw["channel"], room=raw["room"], thread=raw["thread"], extras=dict(raw["extras"]))

    @property
    def whole_room(self) -> Address:
        """The room of the address, in no thread."""
        return replace(self, thread=None)

    def moved(self, address: Address, new: Address) -> Address | None:
        """Return what an address in this room, or in this thread, is at `new`; None for one elsewhere."""
        if (address.channel, address.room) != (self.channel, self.room):
            return None
        if self.thread is None:
            return replace(address, room=new.room)
        if address.thread != self.thread:
            return None
        return replace(new, extras={**address.extras, **new.extras})

    def moved_target(self, target: str, new: Address) -> str | None:
        """Return an encoded address as `moved` does."""
        found = self.moved(Address.decode(target), new)
        return None if found is None else found.encode()

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
    """The sender of an update, by the platform's immutable id; `name` is for display only."""

    id: str
    name: str = ""
    is_bot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that a user sent; `ref` downloads it through the channel, `size` is in bytes (0: unknown)."""

    name: str
    media_type: str
    size: int
    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedMessage:
    """The message that a user's message replies to, as far as known; with files unless it is the bot's."""

    author: Author
    text: str
    platform_id: str = ""
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A user's message. `key` identifies the platform's event: equal keys are the same message.

    `mentions_bot` is also true for a reply to the bot or a command addressed to it. `text` is plain, without
    a mention of the bot at its start. `edited`: it is the new content of the message `platform_id`; every
    change has its own `key`. `root` is what the thread is about, if the update has it. `above` is the thread
    in which the message begins one of its own, whose id then begins with that thread's id and a slash.
    `includes` are messages of the room that `text` contains; those that come later have the same keys.
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
    quoted: QuotedMessage | None = None
    root: QuotedMessage | None = None
    above: str = ""
    includes: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A user's command from the bot's vocabulary, such as `/name words…`, in any platform's spelling.

    `name` is lower-case and has no slash; it may be unknown. `token` answers a slash command once.
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
    """A user pressed one of the bot's buttons. `data` is the button's, `token` answers the press once.

    `comment` is the text the user entered if the button asked for one (Button.prompt).
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
    """A user added or removed a reaction; `platform_id` is the message's id.

    `may_be_bot`: the platform does not say whether a person or another bot reacted.
    """

    key: str
    address: Address
    author: Author
    emoji: str
    added: bool
    platform_id: str
    room: RoomKind = RoomKind.DIRECT
    may_be_bot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomMigrated:
    """A room has a new id: everything addressed to `old` belongs to `new` from now on.

    With a thread in `old`, that is true of this thread alone. `keeps_messages`: they have the same ids there.
    """

    key: str
    old: Address
    new: Address
    keeps_messages: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomsRenamed:
    """The ids of a channel's rooms that began with `old` begin with `new`: their owner has a new name."""

    key: str
    channel: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomReopened:
    """A room that refused messages accepts them again, such as a channel that is no longer archived."""

    key: str
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionsChanged:
    """The bot's permissions changed in some rooms of a channel.

    They are all whose addresses have these `extras`, such as a server's, and whose ids begin so.
    """

    key: str
    channel: str
    extras: Mapping[str, str] = field(default_factory=dict)
    room_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeleted:
    """Somebody deleted the message `platform_id` of a room."""

    key: str
    address: Address
    platform_id: str


RoomChange = RoomMigrated | RoomsRenamed | RoomReopened | PermissionsChanged
"""What a platform reports of its rooms; no person is its author."""

Update = Message | Command | ButtonPress | Reaction | RoomChange | MessageDeleted


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredUpdate:
    """A platform event that is not an update for the bot; `reason` is plain text for the log."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A choice under a reply; `data` is at most 64 bytes of ASCII.

    With a `prompt` the platform asks the user for a comment before the press is received (Feature PROMPTS).
    """

    label: str
    data: str
    prompt: str = ""


class StatusReaction(StrEnum):
    """The state of a message that the bot shows by a reaction."""

    SEEN = "seen"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftText:
    """A reply that is still being generated; `text` is all of it so far, as CommonMark.

    `platform_id` and `previous_text` are the previous call's result and text. `key` is the same in every call
    for one reply. `recipient_id` is the platform's id of the user who is answered.
    """

    key: str
    text: str
    previous_text: str = ""
    platform_id: str | None = None
    recipient_id: str = ""


class StepState(StrEnum):
    """How far a step has come."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStep:
    """One tool call of a turn, or what the turn waits for: a few plain words, and how far it has come."""

    id: str
    title: str
    state: StepState = StepState.RUNNING
    is_wait: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSteps:
    """The tool calls of a turn so far, in order, which one message shows.

    `platform_id` is the previous call's result. `key` is the same in every call for one turn. `recipient_id`
    is the platform's id of the user who is answered. `has_ended`: no further call follows.
    """

    key: str
    steps: tuple[ToolStep, ...]
    platform_id: str | None = None
    recipient_id: str = ""
    has_ended: bool = False

    @property
    def text(self) -> str:
        """The latest calls as CommonMark, where a message of text shows them."""
        latest = self.steps[-MAX_STEP_LINES:]
        hidden = len(self.steps) - len(latest)
        lines = [f"{_STEP_MARKS[step.state]} `{_step_title(step)}`" for step in latest]
        return "\n".join([*([f"({hidden} earlier)"] if hidden else []), *lines])


MAX_STEP_LINES, MAX_STEP_TITLE = 4, 100
_STEP_MARKS = {StepState.RUNNING: "…", StepState.DONE: "✓", StepState.FAILED: "✗"}


def _step_title(step: ToolStep) -> str:
    title = " ".join(step.title.replace("`", "'").split()) or "…"
    return title if len(title) <= MAX_STEP_TITLE else f"{title[: MAX_STEP_TITLE - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A message to send: CommonMark within the channel's length limit, and at most one row of buttons.

    `key`, at most 64 ASCII characters, is the same on every attempt: platforms recognise repeats by it.
    """

    text: str
    key: str
    buttons: tuple[Button, ...] = ()
    reply_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file to send: its bytes, a bare file name and a media type."""

    name: str
    media_type: str
    content: bytes
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """The platform accepted the message; `platform_id` is its id there."""

    platform_id: str
