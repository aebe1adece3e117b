"""Words for what people send that is neither text nor a file, so that an agent can answer it; pure."""

from __future__ import annotations

from collections.abc import Iterable

UNSHOWN = {
    "paid_media": "paid media",
    "story": "a story",
    "giveaway": "a giveaway",
    "giveaway_winners": "a list of winners",
}
"""Words for kinds of messages of which a platform shows bots nothing that an agent could use."""


def describe_unshown(what: str) -> str:
    """Return the words for content that the platform does not show to bots."""
    return f"[{what} that the platform does not show to bots]"


def describe_unshown_kind(kinds: Iterable[str]) -> str:
    """Return the words for the first of the kinds, which are keys of `UNSHOWN`; "" for none."""
    return next((describe_unshown(UNSHOWN[kind]) for kind in kinds), "")


UNREADABLE = describe_unshown("a message")


def describe_location(latitude: object, longitude: object) -> str:
    """Return the words for a place on the map."""
    return f"Location: {latitude}, {longitude}"


def describe_venue(title: str, address: str, place: str) -> str:
    """Return the words for a place with a name; `place` describes it on the map."""
    return f"Place: {title}, {address} ({place})" if place else f"Place: {title}, {address}"


def describe_contact(names: Iterable[str | None], number: str) -> str:
    """Return the words for a shared contact."""
    return f"Contact: {' '.join(name for name in names if name)}, {number}"


MAX_CODE_LINES = 20
"""Lines of a change that are shown with a comment on it, the last of them."""


def describe_code(path: str, line: str, change: str) -> str:
    """Return the words for the line of a file that a comment is about, with the change up to it."""
    place = ", line ".join(filter(None, (path, line)))
    shown = "\n".join(change.splitlines()[-MAX_CODE_LINES:])
    return "\n".join(filter(None, (path and f"Code: {place}", shown)))


def describe_poll(question: str, options: Iterable[str]) -> str:
    """Return the words for a poll."""
    return "\n".join([f"Poll: {question}", *(f"- {option}" for option in options)])


def describe_offer(kind: str, title: str) -> str:
    """Return the words for a game or an invoice, which people open in the platform's own apps."""
    return f"{kind}: {title}"


def describe_checklist(title: str, tasks: Iterable[tuple[str, object]]) -> str:
    """Return the words for a checklist: each task, and whether it is done."""
    return "\n".join([f"Checklist: {title}", *(f"- [{'x' if done else ' '}] {task}" for task, done in tasks)])


def describe_stickers(names: Iterable[str]) -> str:
    """Return the words for stickers, "" for none."""
    return "\n".join(f"[sticker] {name}".strip() for name in names)
