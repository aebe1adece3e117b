"""Render events as chat messages (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from channels.markup import split
from channels.message import Button
from channels.port import ChannelLimits
from delivery.deliveries.part import Part
from delivery.events.event import Event, EventType

CHAT_ROLES = ("assistant", "notice")
MAX_COMMAND_LENGTH = 1000
"""The characters of a command that are shown after its approval was decided."""


def _render_message(event: Event) -> Part | None:
    if event.data.get("role") not in CHAT_ROLES or not str(event.data.get("text", "")).strip():
        return None
    message = event.data.get("message")
    return Part(text=str(event.data["text"]), message=message if isinstance(message, str) else None)


def _render_approval(event: Event) -> Part:
    approval = str(event.data["approval"])
    question = str(event.data.get("question") or event.data["command"])
    reason = f"{event.data['reason']}\n\n" if event.data.get("reason") else ""
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


def _render_decision(event: Event) -> Part:
    decision = "Approved" if event.data["decision"] == "approve" else "Denied"
    decided_by = event.data.get("name") or event.data.get("by") or "an unknown person"
    comment = f"\n\n{event.data['comment']}" if event.data.get("comment") else ""
    command = code_block(str(event.data["command"])[:MAX_COMMAND_LENGTH])
    return Part(text=f"{decision} by {decided_by}:\n\n{command}{comment}")


def _render_retrying(event: Event) -> Part | None:
    """Report a turn that waits for its next attempt; a later attempt changes the same message."""
    if event.data.get("quiet"):
        return None
    at = datetime.fromisoformat(str(event.data["at"])).astimezone(UTC)
    return Part(
        text=(
            f"{event.data['error']}\n\n"
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


def _render_cancelled(event: Event) -> Part | None:
    """Report a stopped turn, unless a newer message replaced it or it was still queued."""
    if event.data.get("reason") in {"superseded", "stopped in line"}:
        return None
    return Part(text="Stopped.")


_RENDERERS: dict[EventType, Callable[[Event], Part | None]] = {
    EventType.MESSAGE_COMPLETED: _render_message,
    EventType.APPROVAL_REQUESTED: _render_approval,
    EventType.APPROVAL_RESOLVED: _render_decision,
    EventType.TURN_RETRYING: _render_retrying,
    EventType.TURN_COMPLETED: _render_completed,
    EventType.TURN_FAILED: _render_failure,
    EventType.TURN_CANCELLED: _render_cancelled,
}


def render_text(event: Event) -> Part | None:
    """Return the chat message for an event, or None for an event that is not sent to chats."""
    renderer = _RENDERERS.get(event.type)
    return renderer(event) if renderer else None


def replaces_event(event: Event) -> str | None:
    """Return the id of the event whose chat message this one replaces.

    A decision replaces the request of its approval; a turn's end and its later retries replace its first
    report of a retry.
    """
    replaced = event.data.get("asked" if event.type is EventType.APPROVAL_RESOLVED else "replaces")
    return replaced if isinstance(replaced, str) else None


def code_block(text: str) -> str:
    """Return a text as a code block with a fence longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def split_part(part: Part, limits: ChannelLimits) -> list[Part]:
    """Split a part by a platform's length limit; the last one has the buttons."""
    texts = split(part.text, limits.text, limits.measure)
    last = len(texts)
    return [
        replace(part, text=text, buttons=part.buttons if number == last else ())
        for number, text in enumerate(texts, start=1)
    ]
