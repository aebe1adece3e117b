"""Select the files of an event that are sent to chats, each as its own part (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delivery.deliveries.part import FilePart, Part
from delivery.deliveries.rendering import CHAT_ROLES
from delivery.events.event import Event, EventType

_JOBS = frozenset({EventType.JOB_COMPLETED, EventType.JOB_FAILED, EventType.JOB_STOPPED, EventType.JOB_LOST})


def attachment_parts(event: Event) -> list[Part]:
    """Return the files that chats get with an event, in order: those of messages and of ended jobs."""
    is_chat_message = event.type is EventType.MESSAGE_COMPLETED and event.data.get("role") in CHAT_ROLES
    if not is_chat_message and event.type not in _JOBS:
        return []
    return [Part(text="", file=_file_part(file)) for file in event.data.get("files") or () if "id" in file]


def _file_part(file: Mapping[str, Any]) -> FilePart:
    return FilePart(
        id=str(file["id"]),
        name=str(file["name"]),
        media_type=str(file["type"]),
        size=int(file["size"]),
        path=str(file.get("path", "")),
        caption=str(file.get("caption", "")),
    )
