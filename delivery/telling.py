"""What of an event is said in a chat, and in which words (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from channels.markup import split
from channels.message import Button
from channels.port import Limits
from delivery.event import Event, Kind
from delivery.part import Part

SPOKEN_ROLES = ("assistant", "notice")


def _message(event: Event) -> Part | None:
    if event.data.get("role") not in SPOKEN_ROLES or not str(event.data.get("text", "")).strip():
        return None
    message = event.data.get("message")
    return Part(text=str(event.data["text"]), message=message if isinstance(message, str) else None)


def _approval(event: Event) -> Part:
    approval = str(event.data["approval"])
    return Part(
        text=(
            f"May I run this?\n\n```\n{event.data['command']}\n```\n\n"
            f"`/approve {approval}` or `/deny {approval}`"
        ),
        buttons=(
            Button(label="Approve", data=f"approve:{approval}"),
            Button(label="Deny", data=f"deny:{approval}"),
        ),
    )


def _failure(event: Event) -> Part:
    return Part(text=f"This did not work: {event.data.get('error') or 'unknown error'}")


def _cancelled(_event: Event) -> Part:
    return Part(text="Stopped.")


_SPOKEN: dict[Kind, Callable[[Event], Part | None]] = {
    Kind.MESSAGE_COMPLETED: _message,
    Kind.APPROVAL_REQUESTED: _approval,
    Kind.TURN_FAILED: _failure,
    Kind.TURN_CANCELLED: _cancelled,
}


def words(event: Event) -> Part | None:
    """Return what a chat is told of the event, or None for what is not for chats."""
    telling = _SPOKEN.get(event.type)
    return telling(event) if telling else None


def parts(said: Part, limits: Limits) -> list[Part]:
    """Cut a saying to a platform's limit; the buttons stand under the last part."""
    texts = split(said.text, limits.text, limits.measure)
    last = len(texts)
    return [
        replace(said, text=text, buttons=said.buttons if place == last else ())
        for place, text in enumerate(texts, start=1)
    ]
