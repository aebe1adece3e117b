"""Which files of an event go to chats, each as a part of its own (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delivery.deliveries.part import Enclosed, Part
from delivery.deliveries.rendering import SPOKEN_ROLES
from delivery.events.event import Event, Kind

_JOBS = frozenset({Kind.JOB_COMPLETED, Kind.JOB_FAILED, Kind.JOB_STOPPED, Kind.JOB_LOST})


def parts(event: Event) -> list[Part]:
    """Return the files that chats get with an event, in order: those of what is said, and of jobs."""
    spoken = event.type is Kind.MESSAGE_COMPLETED and event.data.get("role") in SPOKEN_ROLES
    if not spoken and event.type not in _JOBS:
        return []
    return [Part(text="", file=_enclosed(file)) for file in event.data.get("files") or () if "id" in file]


def _enclosed(file: Mapping[str, Any]) -> Enclosed:
    return Enclosed(
        id=str(file["id"]),
        name=str(file["name"]),
        media_type=str(file["type"]),
        size=int(file["size"]),
        path=str(file.get("path", "")),
        caption=str(file.get("caption", "")),
    )
