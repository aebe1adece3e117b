"""Render events as chat messages and select their files (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from channels.commonmark.markup import close_fence, split
from channels.message import Address, Button
from channels.port import ChannelLimits
from delivery.deliveries.job_message import JOB_STATES, render_job
from delivery.deliveries.part import FilePart, Part
from delivery.events.event import DECISIONS, Event, EventType

CHAT_ROLES = ("assistant", "notice", "operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechFormat:
    """The format of the voice files of answers."""

    suffix: str
    media_type: str


_JOB_ENDS = JOB_STATES.keys() - {EventType.JOB_PROGRESS}
CONTINUED = "… The whole text follows as a file."
"""The end of a message whose text is too long for messages."""

CUT = " …"
"""The end of a text that was cut, because it is too long for an event."""

ACCOUNT_DELETED = "the account was deleted"
CONVERSATION_DELETED = "the conversation was deleted"
"""The reason of a cancelled turn whose conversation is deleted."""

MAX_COMMAND_LENGTH = 1000
"""The characters of a command that are shown after its approval was decided."""


_LITERAL = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_~|<>[]!&:"})
"""The characters that are markup within a line, or make a link of a URL, each behind a backslash."""

MAX_BUTTONS = 5
"""The choices of a question that have buttons; more have numbers only."""

MAX_LABEL = 40
"""The characters of a choice that its button shows."""


def _render_message(event: Event) -> Part | None:
    if event.data.get("role") not in CHAT_ROLES or not str(event.data.get("text", "")).strip():
        return None
    message = event.data.get("message")
    reply_to = event.data.get("reply_to")
    is_operator = event.data.get("role") == "operator"
    author = f"**{_as_text(event.data.get('author'))}:** " if is_operator else ""
    return Part(
        text=f"{author}{event.data['text']}",
        message=message if isinstance(message, str) else None,
        reply_to=reply_to if isinstance(reply_to, str) else None,
    )


def _render_change(event: Event) -> Part:
    """Change the message of an earlier event, or delete it."""
    deletes = event.type is EventType.MESSAGE_DELETED
    text = "" if deletes else str(event.data["text"])
    return Part(text=text, edits=str(event.data["edits"]), only_edit=True, deletes=deletes)


def _render_reaction(event: Event) -> Part:
    """Add an emoji to a message of the chat."""
    return Part(text="", reaction=str(event.data["name"]), reply_to=str(event.data["platform_id"]))


def _render_approval(event: Event) -> Part:
    approval = str(event.data["approval"])
    question = str(event.data.get("question") or event.data["command"])
    reason = f"{close_fence(str(event.data['reason']))}\n\n" if event.data.get("reason") else ""
    return Part(
        text=(
            f"{reason}May I run this?\n\n{code_block(question)}\n\n"
            f"`/approve {approval}` or `/deny {approval}`"
        ),
        buttons=(
            Button(label="Approve", data=f"approve:{approval}"),
            Button(label="Deny", data=f"deny:{approval}"),
            Button(
                label="Approve with comment…",
                data=f"approve_with:{approval}",
                prompt="Approve with a comment",
            ),
            Button(label="Deny with comment…", data=f"deny_with:{approval}", prompt="Deny with a comment"),
        ),
    )


def _render_person_question(event: Event) -> Part:
    """Ask a person; buttons for a few choices, and how to answer by a command."""
    approval, choices = str(event.data["approval"]), list(event.data.get("choices") or ())
    if "sign_in" in event.data:
        return Part(
            text=str(event.data["question"]), buttons=(Button(label="Not now", data=f"deny:{approval}"),)
        )
    form = dict(event.data.get("form") or {})
    lines = [f"{number}. {choice}" for number, choice in enumerate(choices, start=1)]
    lines += [f"- {name}: {text}" for name, text in form.items()]
    example = "NUMBER" if choices else "; ".join(f"{name}: …" for name in form) or "TEXT"
    asked = [close_fence(text) for text in (str(event.data["question"]), "\n".join(lines))]
    parts = [*asked, f"Answer with `/answer {approval} {example}`"]
    buttons = tuple(
        Button(label=choice[:MAX_LABEL], data=f"answer:{approval}:{number}")
        for number, choice in enumerate(choices, start=1)
    )
    if len(choices) > MAX_BUTTONS:
        buttons = ()
    if not choices:
        buttons = (Button(label="Answer…", data=f"answer_with:{approval}", prompt="Your answer"),)
    return Part(text="\n\n".join(part for part in parts if part), buttons=buttons)


def _person_of(event: Event) -> str:
    """Return who decided or answered, as CommonMark that shows the name as it is: people choose theirs."""
    return _as_text(event.data.get("name") or event.data.get("by") or "an unknown person")


def _as_text(name: object) -> str:
    return " ".join(str(name).split()).translate(_LITERAL)


def _render_answer(event: Event) -> Part:
    answer = str(event.data.get("answer") or event.data.get("comment") or "")[:MAX_COMMAND_LENGTH]
    said = "Not answered" if event.data.get("declined") else "Answered"
    block = f"\n\n{code_block(answer)}" if answer else ""
    question = close_fence(str(event.data["question"])[:MAX_COMMAND_LENGTH])
    return Part(text=f"{question}\n\n{said} by {_person_of(event)}.{block}")


def _render_decision(event: Event) -> Part:
    decision = "Approved" if event.data["decision"] == "approve" else "Denied"
    comment = f"\n\n{event.data['comment']}" if event.data.get("comment") else ""
    command = code_block(str(event.data["command"])[:MAX_COMMAND_LENGTH])
    return Part(text=f"{decision} by {_person_of(event)}:\n\n{command}{comment}")


def _render_expired(event: Event) -> Part:
    """Take a question back: its message says why, and has no buttons any more."""
    is_question = event.type is EventType.QUESTION_EXPIRED
    asked = str(event.data["question" if is_question else "command"])[:MAX_COMMAND_LENGTH]
    shown = close_fence(asked) if is_question else code_block(asked)
    what = "answer" if is_question else "decision"
    ended = _ENDINGS.get(str(event.data["ended"]), "has ended")
    return Part(
        text=f"{shown}\n\nNo {what} is needed any more: the turn {ended}.",
        edits=str(event.data["asked"]),
        only_edit=True,
        needs_edits=True,
    )


_ENDINGS = {"cancelled": "was stopped", "failed": "failed"}


def _render_retrying(event: Event) -> Part | None:
    """Report a turn that waits for its next attempt; a later attempt changes the same message."""
    if event.data.get("quiet"):
        return None
    at = datetime.fromisoformat(str(event.data["at"])).astimezone(UTC)
    return Part(
        text=(
            f"{close_fence(str(event.data['error']))}\n\n"
            f"Attempt {int(event.data['attempt']) + 1} follows at {at:%H:%M:%S} UTC. "
            "`/retry` tries again now, `/stop` gives up."
        ),
        buttons=(
            Button(label="Retry now", data=f"retry:{event.turn}"),
            Button(label="Stop", data=f"stop:{event.turn}"),
        ),
        only_edit="replaces" in event.data,
    )


def _render_completed(event: Event) -> Part | None:
    """Change the report about retries once the turn has completed; its answer is a message of its own."""
    if "replaces" not in event.data:
        return None
    return Part(text=f"Attempt {event.data['attempt']} succeeded.", only_edit=True)


def _render_failure(event: Event) -> Part:
    return Part(
        text=f"The request failed: {event.data.get('error') or 'unknown error'}",
        buttons=(Button(label="Retry", data=f"retry:{event.turn}"),) if event.turn else (),
    )


def _render_repeated(event: Event) -> Part | None:
    """Take the button from the report of a failed turn, because a new turn repeats it."""
    if "failure" not in event.data:
        return None
    error = close_fence(str(event.data.get("error") or "unknown error")[:MAX_COMMAND_LENGTH])
    return Part(
        text=f"The request failed: {error}\n\nIt is tried again.",
        edits=str(event.data["failure"]),
        only_edit=True,
        needs_edits=True,
    )


def _render_cancelled(event: Event) -> Part | None:
    """Report a stopped turn, unless a newer message or a person replaced it, or it was still queued."""
    if event.data.get("reason") in {"superseded", "stopped in line", "handed over"}:
        return None
    if event.data.get("reason") in {ACCOUNT_DELETED, CONVERSATION_DELETED}:
        return Part(text=f"Stopped: {event.data['reason']}.")
    return Part(text="Stopped.")


_RENDERERS: dict[EventType, Callable[[Event], Part | None]] = {
    EventType.MESSAGE_COMPLETED: _render_message,
    EventType.MESSAGE_EDITED: _render_change,
    EventType.MESSAGE_DELETED: _render_change,
    EventType.MESSAGE_REACTED: _render_reaction,
    EventType.APPROVAL_REQUESTED: _render_approval,
    EventType.APPROVAL_RESOLVED: _render_decision,
    EventType.APPROVAL_EXPIRED: _render_expired,
    EventType.QUESTION_REQUESTED: _render_person_question,
    EventType.QUESTION_ANSWERED: _render_answer,
    EventType.QUESTION_EXPIRED: _render_expired,
    EventType.TURN_QUEUED: _render_repeated,
    EventType.TURN_RETRYING: _render_retrying,
    EventType.TURN_COMPLETED: _render_completed,
    EventType.TURN_FAILED: _render_failure,
    EventType.TURN_CANCELLED: _render_cancelled,
    **dict.fromkeys(JOB_STATES, render_job),
}


def render_text(event: Event) -> Part | None:
    """Return the chat message for an event, or None for an event that is not sent to chats."""
    renderer = _RENDERERS.get(event.type)
    return renderer(event) if renderer else None


def replaces_event(event: Event) -> str | None:
    """Return the id of the event whose chat message this one replaces.

    A decision replaces the request of its approval; a turn's end and its later retries replace its first
    report of a retry; a job's end and its later progress replace the first report of its progress.
    """
    replaced = event.data.get("asked" if event.type in DECISIONS else "replaces")
    return replaced if isinstance(replaced, str) else None


def only_destination(event: Event) -> str | None:
    """Return the one room that gets an event, of all rooms of its conversation; None: all get it."""
    if event.type is not EventType.MESSAGE_REACTED:
        return None
    return Address(channel=str(event.data["channel"]), room=str(event.data["room"])).destination


def code_block(text: str) -> str:
    """Return a text as a code block with a fence longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def split_part(
    part: Part, limits: ChannelLimits, *, max_messages: int = 0, is_cut: bool = False
) -> list[Part]:
    """Split a part by a platform's length limit; the last one has the buttons.

    The text of a message that needs more than `max_messages` (0: any number) is sent as one message and a
    file. `is_cut`: the text is the beginning of a longer one, which is sent as a file after it.
    """
    if part.deletes or part.reaction is not None:
        return [part]
    texts = split(f"{part.text}{CUT}" if is_cut else part.text, limits.text, limits.measure)
    last = len(texts)
    shown = [
        replace(part, text=text, buttons=part.buttons if number == last else ())
        for number, text in enumerate(texts, start=1)
    ]
    is_long = 0 < max_messages < last
    if part.message is None or part.buttons or not (is_long or is_cut):
        return shown
    whole = replace(part, text="", file=_text_file(part.message, part.text))
    return [_shorten(part, limits), whole] if is_long else [*shown, whole]


def _shorten(part: Part, limits: ChannelLimits) -> Part:
    available = limits.text - limits.measure(CONTINUED) - 2
    return replace(part, text=f"{split(part.text, available, limits.measure)[0]}\n\n{CONTINUED}")


def _text_file(message: str, text: str) -> FilePart:
    return FilePart(
        id=message, name="answer.txt", media_type="text/plain", size=len(text.encode()), is_text=True
    )


def attachment_parts(event: Event) -> list[Part]:
    """Return the files that chats get with an event, in order: those of messages and of ended jobs."""
    is_chat_message = event.type is EventType.MESSAGE_COMPLETED and event.data.get("role") in CHAT_ROLES
    if not is_chat_message and event.type not in _JOB_ENDS:
        return []
    return [Part(text="", file=_file_part(file)) for file in event.data.get("files") or () if "id" in file]


def spoken_events(events: Sequence[Event]) -> frozenset[str]:
    """Return the ids of the answers that end turns: of each turn that completes, the last message."""
    ended = {event.turn for event in events if event.type is EventType.TURN_COMPLETED}
    last = {
        event.turn: event.id
        for event in events
        if event.type is EventType.MESSAGE_COMPLETED and event.data.get("role") == "assistant"
    }
    return frozenset(event for turn, event in last.items() if turn in ended)


def speech_part(event: Event, speech: SpeechFormat) -> Part:
    """Return the voice file of a message, which is made when it is sent."""
    message, name = str(event.data["message"]), f"answer.{speech.suffix}"
    file = FilePart(id=message, name=name, media_type=speech.media_type, size=0, is_speech=True)
    return Part(text="", file=file)


def _file_part(file: Mapping[str, Any]) -> FilePart:
    return FilePart(
        id=str(file["id"]),
        name=str(file["name"]),
        media_type=str(file["type"]),
        size=int(file["size"]),
        path=str(file.get("path", "")),
        caption=str(file.get("caption", "")),
    )
