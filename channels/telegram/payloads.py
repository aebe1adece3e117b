"""The parts of Telegram's updates that are read. Other fields may be as odd as they like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_UNIX_TIME = 253402300799
"""The last second of the year 9999: later ones are no datetime."""

UnixTime = Annotated[int, Field(ge=0, le=MAX_UNIX_TIME)]


class PayloadModel(BaseModel):
    """The base of all: unknown fields are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class User(PayloadModel):
    """A person or bot."""

    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str | None = None
    username: str | None = None


class Chat(PayloadModel):
    """A room."""

    id: int
    type: str = ""
    title: str | None = None


class MessageEntity(PayloadModel):
    """A stretch of a text with a meaning."""

    type: str = ""
    offset: int = 0
    length: int = 0
    user: User | None = None


class File(PayloadModel):
    """A file of any kind."""

    file_id: Annotated[str, StringConstraints(min_length=1)]
    file_size: int | None = None
    file_name: str | None = None
    mime_type: str | None = None
    emoji: str | None = None
    width: int = 0
    height: int = 0
    is_animated: bool = False
    is_video: bool = False


class Location(PayloadModel):
    """A place on earth."""

    latitude: float
    longitude: float


class Venue(PayloadModel):
    """A place with a name."""

    title: str = ""
    address: str = ""


class Contact(PayloadModel):
    """A person's telephone number, shared."""

    phone_number: str = ""
    first_name: str = ""
    last_name: str | None = None


class ReplyTo(PayloadModel):
    """The message another one answers."""

    from_: User | None = Field(default=None, alias="from")
    forum_topic_created: dict[str, Any] | None = None


class Message(PayloadModel):
    """A message."""

    message_id: int
    date: UnixTime = 0
    edit_date: UnixTime | None = None
    chat: Chat
    from_: User | None = Field(default=None, alias="from")
    sender_chat: Chat | None = None
    text: str = ""
    caption: str = ""
    entities: tuple[MessageEntity, ...] = ()
    caption_entities: tuple[MessageEntity, ...] = ()
    message_thread_id: int | None = None
    is_topic_message: bool = False
    is_automatic_forward: bool = False
    reply_to_message: ReplyTo | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None
    photo: tuple[File, ...] = ()
    document: File | None = None
    audio: File | None = None
    voice: File | None = None
    video: File | None = None
    video_note: File | None = None
    animation: File | None = None
    sticker: File | None = None
    location: Location | None = None
    venue: Venue | None = None
    contact: Contact | None = None


class CallbackQuery(PayloadModel):
    """A pressed button."""

    id: str
    from_: User = Field(alias="from")
    message: Message | None = None
    data: str | None = None


class ReactionType(PayloadModel):
    """A sign under a message: an emoji, or something that is not text."""

    type: str = ""
    emoji: str = ""


class MessageReactionUpdated(PayloadModel):
    """What one person's signs under a message were, and are."""

    chat: Chat
    message_id: int
    user: User | None = None
    actor_chat: Chat | None = None
    old_reaction: tuple[ReactionType, ...] = ()
    new_reaction: tuple[ReactionType, ...] = ()


class Update(PayloadModel):
    """One update."""

    update_id: int
    message: Message | None = None
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None
    message_reaction: MessageReactionUpdated | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """Who we are at Telegram."""

    id: str
    username: str
