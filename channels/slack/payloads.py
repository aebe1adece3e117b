"""What Slack posts and frames, as models: only what concerns us, bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from channels.message import Button
from channels.slack import text as slack_text

Id = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Timestamp = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,11}(\.[0-9]{1,12})?$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """Who we are at Slack: the bot's user, its bot id, and the workspace."""

    id: str
    bot_id: str = ""
    team: str = ""


class PayloadModel(BaseModel):
    """What Slack sends, as far as it concerns us."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class MessageEdit(PayloadModel):
    """When a message was edited."""

    ts: Timestamp


class File(PayloadModel):
    """A file of a message."""

    id: Id
    name: str | None = None
    mimetype: str | None = None
    size: int | None = None
    mode: str | None = None
    url_private: str | None = None
    url_private_download: str | None = None


class MessageEvent(PayloadModel):
    """A message event, or a mention."""

    type: str
    subtype: str | None = None
    channel: Id
    channel_type: str | None = None
    user: str | None = None
    bot_id: str | None = None
    ts: Timestamp
    thread_ts: Timestamp | None = None
    text: str | None = None
    files: tuple[File, ...] | None = None
    edited: MessageEdit | None = None
    message: dict[str, Any] | None = None
    previous_message: dict[str, Any] | None = None


class EventCallback(PayloadModel):
    """The envelope of the Events API."""

    team_id: str = ""
    event: dict[str, Any]


class SlashCommand(PayloadModel):
    """A slash command."""

    team_id: str = ""
    channel_id: Id
    channel_name: str = ""
    user_id: Id
    text: str = ""
    trigger_id: Id
    response_url: str = ""


class ObjectRef(PayloadModel):
    """Something with an id."""

    id: Id


class BlockAction(PayloadModel):
    """What was pressed."""

    action_id: str = ""
    value: str | None = None
    action_ts: str = ""


class MessageContainer(PayloadModel):
    """The message that was pressed."""

    message_ts: Timestamp
    channel_id: str | None = None
    thread_ts: Timestamp | None = None


class BlockActions(PayloadModel):
    """A press."""

    type: str
    team: ObjectRef | None = None
    user: ObjectRef
    channel: ObjectRef | None = None
    container: MessageContainer
    response_url: str = ""
    message: dict[str, Any] = Field(default_factory=dict)
    actions: tuple[BlockAction, ...] = ()
    trigger_id: str = ""


class ReactionItem(PayloadModel):
    """What was reacted to."""

    type: str
    channel: Id
    ts: Timestamp


class ReactionEvent(PayloadModel):
    """A reaction under a message, or one taken away."""

    type: str
    user: Id
    reaction: Id
    item: ReactionItem
    event_ts: Timestamp


class View(PayloadModel):
    """A modal that was sent off."""

    id: Id
    callback_id: str = ""
    private_metadata: Annotated[str, StringConstraints(max_length=3000)] = ""
    state: dict[str, Any] = Field(default_factory=dict)


class ViewSubmission(PayloadModel):
    """A person sent a modal off."""

    type: str
    team: ObjectRef | None = None
    user: ObjectRef
    view: View


class ModalMetadata(PayloadModel):
    """What a modal belongs to: the press that opened it, as its private_metadata keeps it."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    team: str
    user: Id
    room: Id
    thread: Timestamp | None = None
    message: Timestamp
    data: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    answer: Annotated[str, StringConstraints(max_length=500)] = ""


PROMPT_PREFIX = "ask|"


MAX_ACTION_ID = 255


def action_id_of(button: Button) -> str:
    """Return a button's action_id, in which its prompt travels."""
    if not button.prompt:
        return button.data
    return f"{PROMPT_PREFIX}{button.data}|{slack_text.clean(button.prompt)}"[:MAX_ACTION_ID]
