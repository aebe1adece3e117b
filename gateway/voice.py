"""The ids of what a turn says: the same in every attempt, so that saying it again is saying it once."""

from __future__ import annotations

import hashlib


def message_of(turn: str, place: int) -> str:
    """Return the id of a turn's message number `place`."""
    return "msg_" + _digest(f"{turn} {place}")


def event_of(message: str) -> str:
    """Return the id of the event that tells a message is complete."""
    return "evt_" + _digest(f"completed {message}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:26]
