"""Text as Telegram counts and accepts it."""

from __future__ import annotations


def is_group(room: str) -> bool:
    """Say whether a chat is a group or channel; the ids of private chats are those of people, above 0."""
    return room.startswith("-")


def measure(text: str) -> int:
    """Count UTF-16 units, Telegram's measure of text."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 can carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean(text: str) -> str:
    """No store takes half a character, and PostgreSQL no NUL."""
    return replace_surrogates(text).replace("\0", "\ufffd")
