"""Presses, and modals for the words a button asks for; pure.

A button with a prompt carries it in its `action_id`, so that nothing has to be remembered: a press of it
opens a modal, whose `private_metadata` names the press, and what is written there is that press's comment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from channels.message import Author, Ignored, Press
from channels.slack import text as slack_text
from channels.slack.addresses import address_of, room_of
from channels.slack.payloads import ASKING, Binding, Bot, Interaction, Submission

CALLBACK = "dovecote_comment"
INPUT = "comment"
TITLE_LIMIT = 24
WORDS_LIMIT = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A press of a button that asks for words: what opens the modal, and the modal."""

    trigger: str
    view: dict[str, Any]


def decode(payload: object, channel: str, bot: Bot) -> Press | Ignored:
    """Translate an interaction; raises ValidationError for garbage."""
    kind = payload.get("type") if isinstance(payload, dict) else None
    match kind:
        case "block_actions":
            return _press(Interaction.model_validate(payload), channel, bot)
        case "view_submission":
            return _submitted(Submission.model_validate(payload), channel, bot)
    return Ignored(reason="an interaction of another kind")


def asking(envelope: object, bot: Bot) -> Asking | None:
    """Return the modal a press wants; None for everything else."""
    if not isinstance(envelope, dict) or envelope.get("type") != "interactive":
        return None
    payload = envelope.get("payload")
    if not isinstance(payload, dict) or payload.get("type") != "block_actions":
        return None
    try:
        press = Interaction.model_validate(payload)
        return _asking(press, bot)
    except (ValidationError, RecursionError):
        return None


def _asking(press: Interaction, bot: Bot) -> Asking | None:
    action = press.actions[0] if press.actions else None
    room = press.channel.id if press.channel else press.container.channel_id
    if action is None or not action.action_id.startswith(ASKING) or not action.value or room is None:
        return None
    binding = Binding(
        team=press.team.id if press.team else bot.team,
        user=press.user.id,
        room=room,
        thread=press.container.thread_ts or _thread_of(press.message),
        message=press.container.message_ts,
        data=action.value,
        answer=press.response_url,
    )
    prompt = action.action_id.removeprefix(ASKING).partition("|")[2]
    return Asking(trigger=press.trigger_id, view=_view(prompt, binding))


def _view(prompt: str, binding: Binding) -> dict[str, Any]:
    words = slack_text.clean(prompt).strip() or "A few words"
    field = {"type": "plain_text_input", "action_id": INPUT, "multiline": True, "max_length": WORDS_LIMIT}
    question = {
        "type": "input",
        "block_id": INPUT,
        "optional": True,
        "element": field,
        "label": _plain(words),
    }
    return {
        "type": "modal",
        "callback_id": CALLBACK,
        "private_metadata": binding.model_dump_json(),
        "title": _plain("Your comment"[:TITLE_LIMIT]),
        "submit": _plain("Send"),
        "close": _plain("Cancel"),
        "blocks": [question],
    }


def _plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": text}


def _press(press: Interaction, channel: str, bot: Bot) -> Press | Ignored:
    room_id = press.channel.id if press.channel else press.container.channel_id
    action = press.actions[0] if press.actions else None
    if room_id is None or action is None or action.value is None:
        return Ignored(reason="a press of a button that is not ours")
    room = room_of(room_id, None)
    ts = press.container.message_ts
    thread = press.container.thread_ts or _thread_of(press.message)
    team = press.team.id if press.team else bot.team
    return Press(
        key=slack_text.clean(
            f"{team}:press:{room_id}:{ts}:{press.user.id}:{action.action_ts or action.value}"
        ),
        address=address_of(channel, room_id, room, thread, None),
        author=Author(id=slack_text.clean(press.user.id)),
        data=slack_text.clean(action.value),
        token=slack_text.clean(press.response_url or press.trigger_id),
        room=room,
        platform_id=ts,
    )


def _submitted(submission: Submission, channel: str, bot: Bot) -> Press | Ignored:
    """A modal is ours when it is bound to a press of the same person in the same workspace."""
    view = submission.view
    if view.callback_id != CALLBACK:
        return Ignored(reason="a modal that is not ours")
    binding = Binding.model_validate_json(view.private_metadata)
    team = submission.team.id if submission.team else bot.team
    if (binding.user, binding.team) != (submission.user.id, team):
        return Ignored(reason="a modal bound to another person or workspace")
    room = room_of(binding.room, None)
    return Press(
        key=slack_text.clean(f"{team}:view:{view.id}"),
        address=address_of(channel, binding.room, room, binding.thread, None),
        author=Author(id=slack_text.clean(submission.user.id)),
        data=slack_text.clean(binding.data),
        token=slack_text.clean(binding.answer),
        comment=_words_in(view.state),
        room=room,
        platform_id=binding.message,
    )


def _words_in(state: dict[str, Any]) -> str:
    """Return what was written in the modal's one field."""
    found: Any = state
    for name in ("values", INPUT, INPUT, "value"):
        found = found.get(name) if isinstance(found, dict) else None
    return slack_text.clean(found).strip()[:WORDS_LIMIT] if isinstance(found, str) else ""


def _thread_of(message: dict[str, Any]) -> str | None:
    thread = message.get("thread_ts")
    return thread if isinstance(thread, str) else None
