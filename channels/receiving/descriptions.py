"""Words for what people send that is neither text nor a file, so that an agent can answer it; pure."""

from __future__ import annotations

from collections.abc import Iterable

UNREADABLE = "[a message that the platform does not show to bots]"


def describe_location(latitude: object, longitude: object) -> str:
    """Return the words for a place on the map."""
    return f"Location: {latitude}, {longitude}"


def describe_venue(title: str, address: str, place: str) -> str:
    """Return the words for a place with a name; `place` describes it on the map."""
    return f"Place: {title}, {address} ({place})" if place else f"Place: {title}, {address}"


def describe_contact(names: Iterable[str | None], number: str) -> str:
    """Return the words for a shared contact."""
    return f"Contact: {' '.join(name for name in names if name)}, {number}"


def describe_poll(question: str, options: Iterable[str]) -> str:
    """Return the words for a poll."""
    return "\n".join([f"Poll: {question}", *(f"- {option}" for option in options)])


def describe_stickers(names: Iterable[str]) -> str:
    """Return the words for stickers, "" for none."""
    return "\n".join(f"[sticker] {name}".strip() for name in names)
