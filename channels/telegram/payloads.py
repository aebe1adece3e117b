"""Models of the parts of Telegram's updates that are read; other fields may have any content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from channels.receiving.payload_model import PayloadModel

MAX_UNIX_TIME = 253402300799
"""The last second of the year 9999, the largest a datetime holds."""

DIRECT_TOPIC = "direct-"
"""Begins the thread of an address that is a topic of a channel's direct messages; its id follows."""

COMMENTS = "comments-"
"""Begins the thread of an address that is the comments on a channel's post; its id in the group follows.

Bot API: comments carry `message_thread_id` without `is_topic_message`. Only topics can be named by that
parameter when a message is sent, so an answer replies to the post instead.
"""

UnixTime = Annotated[int, Field(ge=0, le=MAX_UNIX_TIME)]


class User(PayloadModel):
    """A person or a bot."""

    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str | None = None
    username: str | None = None


class Chat(PayloadModel):
    """A chat."""

    id: int
    type: str = ""
    title: str | None = None


class MessageEntity(PayloadModel):
    """A special part of a text, such as a mention or a command."""

    type: str = ""
    offset: int = 0
    length: int = 0
    user: User | None = None
    url: str = ""


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
    """A point on the map."""

    latitude: float
    longitude: float


class Venue(PayloadModel):
    """A place with a name and an address."""

    title: str = ""
    address: str = ""


class Contact(PayloadModel):
    """A shared phone contact."""

    phone_number: str = ""
    first_name: str = ""
    last_name: str | None = None


class PollOption(PayloadModel):
    """One answer of a poll."""

    text: str = ""


class Poll(PayloadModel):
    """A poll."""

    question: str = ""
    options: tuple[PollOption, ...] = ()


class ChecklistTask(PayloadModel):
    """One task of a checklist; without a date it is not done."""

    text: str = ""
    completion_date: int = 0


class Checklist(PayloadModel):
    """A checklist."""

    title: str = ""
    tasks: tuple[ChecklistTask, ...] = ()


class Offer(PayloadModel):
    """A game or an invoice, which only its own bot can serve."""

    title: str = ""


class Dice(PayloadModel):
    """An animated emoji with a random value."""

    emoji: str = ""
    value: int = 0


class DirectMessagesTopic(PayloadModel):
    """One person's talk with the administrators of a channel, in the channel's chat of direct messages."""

    topic_id: int


class Content(PayloadModel):
    """What a message says, and who says it."""

    message_id: int = 0
    from_: User | None = Field(default=None, alias="from")
    sender_chat: Chat | None = None
    text: str = ""
    caption: str = ""
    entities: tuple[MessageEntity, ...] = ()
    caption_entities: tuple[MessageEntity, ...] = ()
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
    poll: Poll | None = None
    dice: Dice | None = None
    checklist: Checklist | None = None
    paid_media: dict[str, Any] | None = None
    story: dict[str, Any] | None = None
    giveaway: dict[str, Any] | None = None
    giveaway_winners: dict[str, Any] | None = None
    game: Offer | None = None
    invoice: Offer | None = None


class ReplyTo(Content):
    """The message that is replied to."""

    forum_topic_created: dict[str, Any] | None = None
    is_automatic_forward: bool = False


class Message(Content):
    """A message."""

    message_id: int
    date: UnixTime = 0
    edit_date: UnixTime | None = None
    chat: Chat
    message_thread_id: int | None = None
    is_topic_message: bool = False
    is_automatic_forward: bool = False
    forward_origin: dict[str, Any] | None = None
    direct_messages_topic: DirectMessagesTopic | None = None
    reply_to_message: ReplyTo | None = None
    external_reply: Content | None = None
    reply_to_story: dict[str, Any] | None = None
    quote: Content | None = None
    forum_topic_reopened: dict[str, Any] | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None


class CallbackQuery(PayloadModel):
    """A press of an inline keyboard button."""

    id: str
    from_: User = Field(alias="from")
    message: Message | None = None
    data: str | None = None


class ReactionType(PayloadModel):
    """A reaction: an emoji, or a kind that has no text."""

    type: str = ""
    emoji: str = ""


class MessageReactionUpdated(PayloadModel):
    """A user's reactions to a message, before and after a change."""

    chat: Chat
    message_id: int
    from_: User | None = Field(default=None, alias="user")
    sender_chat: Chat | None = Field(default=None, alias="actor_chat")
    old_reaction: tuple[ReactionType, ...] = ()
    new_reaction: tuple[ReactionType, ...] = ()


class ChatMember(PayloadModel):
    """What the bot is in a chat; `can_send_messages` is there if it is restricted."""

    status: str
    can_send_messages: bool = False


class ChatMemberUpdated(PayloadModel):
    """A change of what the bot is in a chat."""

    chat: Chat
    new_chat_member: ChatMember


class Update(PayloadModel):
    """One update."""

    update_id: int
    message: Message | None = None
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None
    message_reaction: MessageReactionUpdated | None = None
    my_chat_member: ChatMemberUpdated | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """The bot's own account at Telegram."""

    id: str
    username: str
