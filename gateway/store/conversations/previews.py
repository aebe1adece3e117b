"""SQL of what a list of conversations shows of each: the last message, who takes part, and its states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import func, select, union_all

from delivery.database.engine import Connection
from gateway.store.conversations.listing import STATE_CONDITIONS, ConversationState
from gateway.store.conversations.messages import MessageRole
from gateway.store.tables import conversations, messages

PREVIEW_LENGTH = 200
"""Characters of the last message."""

RECENT_MESSAGES = 10
"""The last messages of a conversation, whose authors take part in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMessage:
    """The end of a conversation: the start of its last message."""

    role: MessageRole
    author: str
    text: str
    created_at: datetime


@dataclass(slots=True, kw_only=True)
class Preview:
    """What a list shows of a conversation; `people` are the authors of its recent messages.

    `names` are those of the authors who are known by one, once they were looked up.
    """

    last: LastMessage | None = None
    people: list[str] = field(default_factory=list)
    names: Mapping[str, str] = field(default_factory=dict)
    states: list[ConversationState] = field(default_factory=list)


async def read_previews(connection: Connection, ids: Sequence[str]) -> Mapping[str, Preview]:
    """Return the previews of some conversations by their ids."""
    found: defaultdict[str, Preview] = defaultdict(Preview)
    if not ids:
        return found
    for conversation, message in await _recent_messages(connection, ids):
        preview = found[conversation]
        preview.last = preview.last or message
        if message.role == "user" and message.author and message.author not in preview.people:
            preview.people.append(message.author)
    for state, condition in STATE_CONDITIONS.items():
        matching = select(conversations.c.id).where(conversations.c.id.in_(ids), condition)
        for conversation in (await connection.execute(matching)).scalars():
            found[conversation].states.append(state)
    return found


async def _recent_messages(connection: Connection, ids: Sequence[str]) -> list[tuple[str, LastMessage]]:
    """Return the last messages of each conversation, newest first."""
    each = [
        select(
            messages.c.conversation,
            messages.c.position,
            messages.c.role,
            messages.c.author,
            func.substr(messages.c.text, 1, PREVIEW_LENGTH).label("text"),
            messages.c.created_at,
        )
        .where(messages.c.conversation == one)
        .order_by(messages.c.position.desc())
        .limit(RECENT_MESSAGES)
        .subquery()
        for one in ids
    ]
    rows = (await connection.execute(union_all(*(select(one) for one in each)))).mappings()
    return [
        (
            row["conversation"],
            LastMessage(
                role=row["role"], author=row["author"], text=row["text"], created_at=row["created_at"]
            ),
        )
        for row in sorted(rows, key=lambda row: -int(row["position"]))
    ]
