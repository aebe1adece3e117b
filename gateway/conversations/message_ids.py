"""Ids of a turn's messages, the same in every attempt, and the paths of full texts."""

from __future__ import annotations

import hashlib

from delivery.events.event import Event


def message_id(turn: str, position: int) -> str:
    """Return the id of a turn's message number `position`."""
    return "msg_" + _digest(f"{turn} {position}")


def completed_event_id(message: str) -> str:
    """Return the id of a message's `message.completed` event."""
    return "evt_" + _digest(f"completed {message}")


def approval_event_id(approval: str) -> str:
    """Return the id of an approval's `approval.requested` event."""
    return "evt_" + _digest(f"asked {approval}")


def report_message_id(job: str) -> str:
    """Return the id of the message that is a job's own report."""
    return "msg_" + _digest(f"report {job}")


def running_message_id(job: str) -> str:
    """Return the id of the message that says that a job outlives the turn that started it."""
    return "msg_" + _digest(f"running {job}")


def full_text_path(event: Event) -> str | None:
    """Return the path of an event's full text, or None."""
    family = event.type.split(".", 1)[0]
    if family == "job":
        return f"/jobs/{event.data['resultId']}/logs"
    if family == "tool":
        return f"/turns/{event.turn}/log"
    if family == "message":
        return f"/conversations/{event.conversation}/snapshot"
    return f"/status/{event.turn}" if event.turn else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:26]
