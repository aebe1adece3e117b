"""Models of the parts of Discord's events and interactions that are read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from channels.receiving.payload_model import PayloadModel

Id = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")]


class User(PayloadModel):
    """A user or bot account."""

    id: Id
    username: str = ""
    global_name: str | None = None
    bot: bool = False


class Member(PayloadModel):
    """A user's membership of a server."""

    nick: str | None = None
    user: User | None = None


class Channel(PayloadModel):
    """A channel, thread or private conversation."""

    id: Id
    type: int = 0
    parent_id: Id | None = None
    name: str | None = None


class Attachment(PayloadModel):
    """A file of a message."""

    id: Id
    filename: str = ""
    content_type: str | None = None
    size: int = 0


class Content(PayloadModel):
    """What a message holds; `content` is empty in one of components, which have its texts."""

    content: str = ""
    attachments: tuple[Attachment, ...] = ()
    poll: Any = None
    sticker_items: Any = None
    components: Any = None
    embeds: Any = None


class MessageSnapshot(PayloadModel):
    """A message as it was when it was forwarded; Discord does not say who wrote it."""

    message: Content


class PostedContent(Content):
    """What a message holds, with the messages that it forwards."""

    message_snapshots: tuple[MessageSnapshot, ...] = ()


class ReferencedMessage(PostedContent):
    """The message that is replied to."""

    id: Id | None = None
    author: User | None = None


class Message(PostedContent):
    """A message; the event handler adds `channel`, and `own_role` if the message mentions roles."""

    id: Id
    channel_id: Id
    guild_id: Id | None = None
    type: int = 0
    author: User
    member: Member | None = None
    webhook_id: Id | None = None
    edited_timestamp: str | None = None
    mentions: tuple[User, ...] = ()
    referenced_message: ReferencedMessage | None = None
    channel: Channel | None = None
    own_role: Id | None = None


class MessageDelete(PayloadModel):
    """A message that was deleted; the event handler adds `channel`."""

    id: Id
    channel_id: Id
    guild_id: Id | None = None
    channel: Channel | None = None


class GuildEvent(PayloadModel):
    """A change of a role of a server, or of its member `user`."""

    guild_id: Id
    user: User | None = None


class Emoji(PayloadModel):
    """An emoji: a character, or a server's custom emoji with an id."""

    id: Id | None = None
    name: str | None = None


class MessageReaction(PayloadModel):
    """A reaction that was added or removed; the event handler adds `channel`."""

    user_id: Id
    channel_id: Id
    message_id: Id
    guild_id: Id | None = None
    member: Member | None = None
    emoji: Emoji
    channel: Channel | None = None


class CommandOption(PayloadModel):
    """An argument of a slash command."""

    name: str = ""
    value: str | int | float | bool | None = None


class ModalField(PayloadModel):
    """The value of one field of a modal."""

    custom_id: str = ""
    value: str = ""


class ModalRow(PayloadModel):
    """A row of a submitted modal: fields side by side, or one field under a label."""

    components: tuple[ModalField, ...] = ()
    component: ModalField | None = None


class InteractionData(PayloadModel):
    """The content of an interaction."""

    name: str = ""
    custom_id: str = ""
    options: tuple[CommandOption, ...] = ()
    components: tuple[ModalRow, ...] = ()


class ComponentMessage(PayloadModel):
    """The message whose button was pressed."""

    id: Id


class Interaction(PayloadModel):
    """A slash command, a button press or a submitted modal."""

    id: Id
    application_id: Id
    type: int
    token: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.~=-]{1,1000}$")]
    guild_id: Id | None = None
    channel_id: Id | None = None
    channel: Channel | None = None
    member: Member | None = None
    user: User | None = None
    data: InteractionData | None = None
    message: ComponentMessage | None = None
    context: int | None = None
    authorizing_integration_owners: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_foreign(self) -> bool:
        """Whether the bot cannot write where it was made: in a conversation of others, or in their server.

        A person who has installed the app for themselves can use it there.
        """
        owners = self.authorizing_integration_owners
        is_of_user = self.guild_id is not None and bool(owners) and GUILD_INSTALLATION not in owners
        return self.context == PRIVATE_CHANNEL or is_of_user


PRIVATE_CHANNEL, GUILD_INSTALLATION = 2, "0"
"""The context of a conversation without the bot, and the kind of an installation with a member."""

EPOCH = 1_420_070_400_000
"""Discord's ids count milliseconds from the first second of 2015."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """The bot's own account at Discord."""

    id: str
    username: str = ""
    application_id: str = ""


def snowflake_time(snowflake: str) -> datetime:
    """Return the time at which an id was created."""
    return datetime.fromtimestamp(((int(snowflake) >> 22) + EPOCH) / 1000, UTC)


def time_snowflake(when: datetime) -> int:
    """Return the smallest id of a time."""
    return max(0, int(when.timestamp() * 1000) - EPOCH) << 22


CHANNEL_MESSAGE = 4
"""The type of an interaction response that is a message."""
