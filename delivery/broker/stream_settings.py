"""Tell a stream's settings that a gateway wrote from those that somebody changed at the server.

A gateway writes the limits into the metadata of the stream too, which `nats stream edit` keeps. So replicas
with different settings, as during a restart of one after another, do not undo each other's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LEAVE_SETTINGS = "leave the streams' settings to the gateway: set event_log_bytes and event_max_age"
INCOMPLETE = "dovecote_incomplete"
"""Metadata of a stream whose events were deleted by a limit, until they are published again."""

_MARK = "dovecote."
"""Metadata that begins so has a setting as a gateway wrote it."""
_DELETING = ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_age")
"""The limits that delete messages."""
_MARKED = (*_DELETING, "discard")


def marks(want: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata that has the settings."""
    return {_MARK + name: str(want[name]) for name in _MARKED if name in want}


def changed_settings(have: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a stream that are not as a gateway wrote them, with their present values."""
    written = have.get("metadata") or {}
    shown = {name: str(have.get(name)) for name in _MARKED}
    return {name: have.get(name) for name in _MARKED if written.get(_MARK + name, shown[name]) != shown[name]}


def deletes_more(have: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
    """Return whether somebody lowered a limit of a stream, so that it may have deleted what belongs in it."""
    changed = changed_settings(have)
    return any(0 < changed.get(name, 0) < _limit(want.get(name, -1)) for name in _DELETING)


def is_incomplete(have: Mapping[str, Any]) -> bool:
    """Return whether events that such a limit deleted have not been published again."""
    return INCOMPLETE in (have.get("metadata") or {})


def _limit(value: int) -> float:
    return value if value > 0 else math.inf
