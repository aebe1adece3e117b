"""Titles: what people see as the name of a conversation, by default the start of its first message."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from delivery.database.engine import Connection
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.conversations import Conversation

TITLE_LENGTH = 80
"""Characters of a title that is made from a message."""

LONGEST_TITLE = 200
"""Characters of a title that a person chooses."""

_JOINERS = "\u200c\u200d"
"""They have no shape, and change that of the letters and emoji beside them."""

_MARGIN = f" {_JOINERS}"

NO_TEXT = "(no text)"
"""The text of a message that has files only."""


def derive_title(text: str, *, length: int = TITLE_LENGTH) -> str | None:
    """Return a text as one visible line; None if nothing of it is visible."""
    words = "".join(" " if letter.isspace() else letter for letter in text[: 20 * length])
    line = " ".join("".join(filter(_is_shown, words)).split()).strip(_MARGIN)
    return (line if len(line) <= length else f"{line[: length - 1].rstrip(_MARGIN)}…") or None


def _is_shown(letter: str) -> bool:
    return letter in _JOINERS or not unicodedata.category(letter).startswith("C")


async def set_first_title(
    connection: Connection, conversation: Conversation, text: str, attachments: Sequence[Mapping[str, Any]]
) -> None:
    """Give a conversation without a title the start of its message, or the name of its first file."""
    if conversation.title is not None:
        return
    if attachments and text in {"", NO_TEXT}:
        text = str(attachments[0].get("name") or text)
    title = derive_title(text)
    if title is not None:
        await conversations.set_title(connection, conversation.id, title)


async def rename(connection: Connection, conversation: str, title: str | None) -> str | None:
    """Set a person's title, or the one of the first message again; returns it."""
    chosen = derive_title(title, length=LONGEST_TITLE) if title is not None else None
    if chosen is None:
        found = map(derive_title, await messages.first_texts(connection, conversation))
        chosen = next((one for one in found if one is not None), None)
    await conversations.set_title(connection, conversation, chosen)
    return chosen
