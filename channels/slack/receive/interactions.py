"""Decode button presses, and the modals that ask for a comment; pure.

A button with a prompt carries it in its `action_id`, so that nothing must be remembered. A press of it opens
a modal whose `private_metadata` names the press; the text entered there is the comment of that press.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from channels.inbox.text import clean, text_at
from channels.message import Author, ButtonPress, IgnoredUpdate
from channels.slack.addresses import address_of, room_kind_of
from channels.slack.payloads import PROMPT_PREFIX, BlockActions, Bot, ModalMetadata, ViewSubmission

CALLBACK_ID = "dovecote_comment"
INPUT_ID = "comment"
COMMENT_LIMIT = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModalRequest:
    """A modal to open for a press of a button with a prompt, and the trigger that opens it."""

    trigger: str
    view: dict[str, Any]


def decode(payload: object, channel: str, bot: Bot) -> ButtonPress | IgnoredUpdate:
    """Decode an interaction; raises ValidationError if it is malformed."""
    kind = payload.get("type") if isinstance(payload, dict) else None
    match kind:
        case "block_actions":
            return _press(BlockActions.model_validate(payload), channel, bot)
        case "view_submission":
            return _submission(ViewSubmission.model_validate(payload), channel, bot)
    return IgnoredUpdate(reason="an interaction of another kind")


def parse_modal_request(envelope: object, bot: Bot) -> ModalRequest | None:
    """Return the modal that a press must open; None for anything else."""
    if not isinstance(envelope, dict) or envelope.get("type") != "interactive":
        return None
    payload = envelope.get("payload")
    if not isinstance(payload, dict) or payload.get("type") != "block_actions":
        return None
    try:
        press = BlockActions.model_validate(payload)
        return _modal_request(press, bot)
    except (ValidationError, RecursionError):
        return None


def _modal_request(press: BlockActions, bot: Bot) -> ModalRequest | None:
    action = press.actions[0] if press.actions else None
    room = press.channel.id if press.channel else press.container.channel_id
    if action is None or not action.action_id.startswith(PROMPT_PREFIX) or not action.value or room is None:
        return None
    metadata = ModalMetadata(
        team=press.team.id if press.team else bot.team,
        user=press.user.id,
        room=room,
        thread=press.container.thread_ts or text_at(press.message, "thread_ts") or None,
        message=press.container.message_ts,
        data=action.value,
        answer=press.response_url,
    )
    prompt = action.action_id.removeprefix(PROMPT_PREFIX).partition("|")[2]
    return ModalRequest(trigger=press.trigger_id, view=_view(prompt, metadata))


def _view(prompt: str, metadata: ModalMetadata) -> dict[str, Any]:
    label = _plain(clean(prompt).strip() or "Comment")
    field = {
        "type": "plain_text_input",
        "action_id": INPUT_ID,
        "multiline": True,
        "max_length": COMMENT_LIMIT,
    }
    block = {"type": "input", "block_id": INPUT_ID, "optional": True, "label": label, "element": field}
    return {
        "type": "modal",
        "callback_id": CALLBACK_ID,
        "private_metadata": metadata.model_dump_json(),
        "title": _plain("Your comment"),
        "submit": _plain("Send"),
        "close": _plain("Cancel"),
        "blocks": [block],
    }


def _plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": text}


def _press(press: BlockActions, channel: str, bot: Bot) -> ButtonPress | IgnoredUpdate:
    room_id = press.channel.id if press.channel else press.container.channel_id
    action = press.actions[0] if press.actions else None
    if room_id is None or action is None or action.value is None:
        return IgnoredUpdate(reason="a press of another program's button")
    ts = press.container.message_ts
    thread = press.container.thread_ts or text_at(press.message, "thread_ts") or None
    team = press.team.id if press.team else bot.team
    return ButtonPress(
        key=clean(f"{team}:press:{room_id}:{ts}:{press.user.id}:{action.action_ts or action.value}"),
        address=address_of(channel, room_id, thread, None),
        author=Author(id=clean(press.user.id)),
        data=clean(action.value),
        token=clean(press.response_url or press.trigger_id),
        room=room_kind_of(room_id, None),
        platform_id=ts,
    )


def _submission(submission: ViewSubmission, channel: str, bot: Bot) -> ButtonPress | IgnoredUpdate:
    """Decode a submitted modal, if its press was made by the same user in the same workspace."""
    view = submission.view
    if view.callback_id != CALLBACK_ID:
        return IgnoredUpdate(reason="a modal of another program")
    metadata = ModalMetadata.model_validate_json(view.private_metadata)
    # In Slack Connect the submission's team is the user's own, the press's is the app's; the view of an app
    # that an organisation installed names the organisation.
    team = view.app_installed_team_id or (submission.team.id if submission.team else bot.team)
    if metadata.user != submission.user.id or team not in {metadata.team, bot.enterprise}:
        return IgnoredUpdate(reason="a modal of another user or workspace")
    return ButtonPress(
        key=clean(f"{team}:view:{view.id}"),
        address=address_of(channel, metadata.room, metadata.thread, None),
        author=Author(id=clean(submission.user.id)),
        data=clean(metadata.data),
        token=clean(metadata.answer),
        comment=_comment_in(view.state),
        room=room_kind_of(metadata.room, None),
        platform_id=metadata.message,
    )


def _comment_in(state: dict[str, Any]) -> str:
    """Return the text entered into the modal's only field."""
    return text_at(state, "values", INPUT_ID, INPUT_ID, "value").strip()[:COMMENT_LIMIT]
