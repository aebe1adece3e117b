"""Models of the parts of Slack's payloads that are read, with bounded fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from channels.inbox.text import clean
from channels.message import Button
from channels.receiving.payload_model import PayloadModel

Id = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Timestamp = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,11}(\.[0-9]{1,12})?$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """The bot's own account at Slack: its user, its bot id, and the workspace."""

    id: str
    bot_id: str = ""
    team: str = ""
    enterprise: str = ""
    """The organisation of Enterprise Grid, if the workspace is in one."""
    is_org_wide: bool = False
    """Whether the app is installed in all workspaces of the organisation."""


class MessageEdit(PayloadModel):
    """The time at which a message was edited."""

    ts: Timestamp


class File(PayloadModel):
    """A file of a message."""

    id: Id
    name: str | None = None
    title: str | None = None
    mimetype: str | None = None
    size: int | None = None
    mode: str | None = None
    url_private: str | None = None
    url_private_download: str | None = None
    permalink: str | None = None


class MessageEvent(PayloadModel):
    """A message event or an app_mention."""

    type: str
    subtype: str | None = None
    channel: Id
    channel_type: str | None = None
    user: str | None = None
    bot_id: str | None = None
    ts: Timestamp
    thread_ts: Timestamp | None = None
    deleted_ts: Timestamp | None = None
    text: str | None = None
    files: tuple[File, ...] | None = None
    attachments: Any = None
    blocks: Any = None
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
    """A reference to an object by id."""

    id: Id


class BlockAction(PayloadModel):
    """The element that was pressed."""

    action_id: str = ""
    value: str | None = None
    action_ts: str = ""


class MessageContainer(PayloadModel):
    """The message whose button was pressed."""

    message_ts: Timestamp
    channel_id: str | None = None
    thread_ts: Timestamp | None = None


class BlockActions(PayloadModel):
    """A button press."""

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
    """The object of a reaction."""

    type: str
    channel: Id
    ts: Timestamp


class ReactionEvent(PayloadModel):
    """A reaction that was added or removed."""

    type: str
    user: Id
    reaction: Id
    item: ReactionItem
    event_ts: Timestamp


class View(PayloadModel):
    """A submitted modal."""

    id: Id
    callback_id: str = ""
    private_metadata: Annotated[str, StringConstraints(max_length=3000)] = ""
    app_installed_team_id: str = ""
    state: dict[str, Any] = Field(default_factory=dict)


class ViewSubmission(PayloadModel):
    """A user's submission of a modal."""

    type: str
    team: ObjectRef | None = None
    user: ObjectRef
    view: View


class ModalMetadata(PayloadModel):
    """The button press that opened a modal, stored in the modal's private_metadata."""

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
    """Return a button's action_id, which includes its prompt."""
    if not button.prompt:
        return button.data
    return f"{PROMPT_PREFIX}{button.data}|{clean(button.prompt)}"[:MAX_ACTION_ID]
