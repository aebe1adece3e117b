"""What of an event is said in a chat, and in which words (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from channels.markup import split
from channels.message import Button
from channels.port import ChannelLimits
from delivery.deliveries.part import Part
from delivery.events.event import Event, EventType

CHAT_ROLES = ("assistant", "notice")
MAX_COMMAND_LENGTH = 1000
"""Characters of a command shown once it is decided."""


def _render_message(event: Event) -> Part | None:
    if event.data.get("role") not in CHAT_ROLES or not str(event.data.get("text", "")).strip():
        return None
    message = event.data.get("message")
    return Part(text=str(event.data["text"]), message=message if isinstance(message, str) else None)


def _render_approval(event: Event) -> Part:
    approval = str(event.data["approval"])
    again = f"{event.data['reason']}\n\n" if event.data.get("reason") else ""
    return Part(
        text=(
            f"{again}May I run this?\n\n{code_block(str(event.data['command']))}\n\n"
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
    verdict = "Approved" if event.data["decision"] == "approve" else "Denied"
    who = event.data.get("name") or event.data.get("by") or "somebody"
    comment = f"\n\n{event.data['comment']}" if event.data.get("comment") else ""
    return Part(
        text=f"{verdict} by {who}:\n\n{code_block(str(event.data['command'])[:MAX_COMMAND_LENGTH])}{comment}"
    )


def _render_failure(event: Event) -> Part:
    return Part(text=f"This did not work: {event.data.get('error') or 'unknown error'}")


def _render_cancelled(event: Event) -> Part | None:
    """Say that something was stopped; not of what a newer message ended, nor of all that waited behind it."""
    if event.data.get("reason") in {"superseded", "stopped in line"}:
        return None
    return Part(text="Stopped.")


_RENDERERS: dict[EventType, Callable[[Event], Part | None]] = {
    EventType.MESSAGE_COMPLETED: _render_message,
    EventType.APPROVAL_REQUESTED: _render_approval,
    EventType.APPROVAL_RESOLVED: _render_decision,
    EventType.TURN_FAILED: _render_failure,
    EventType.TURN_CANCELLED: _render_cancelled,
}


def render_text(event: Event) -> Part | None:
    """Return what a chat is told of the event, or None for what is not for chats."""
    telling = _RENDERERS.get(event.type)
    return telling(event) if telling else None


def replaces_event(event: Event) -> str | None:
    """Return the id of the event whose words in a chat this event's replace: a question, once decided."""
    asked = event.data.get("asked") if event.type is EventType.APPROVAL_RESOLVED else None
    return asked if isinstance(asked, str) else None


def code_block(text: str) -> str:
    """Return output as a code block, whatever backticks it holds."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def split_part(part: Part, limits: ChannelLimits) -> list[Part]:
    """Cut a saying to a platform's limit; the buttons stand under the last part."""
    texts = split(part.text, limits.text, limits.measure)
    last = len(texts)
    return [
        replace(part, text=text, buttons=part.buttons if place == last else ())
        for place, text in enumerate(texts, start=1)
    ]
