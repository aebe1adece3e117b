"""Messages that a client puts into a conversation's history: at its beginning, or between two turns.

Those before the first turn are a row of the history. Later ones wait in the conversation's carried context
for its next turn, because a turn may be running: that turn gets them as its past, and its entry of the
history begins with them. So what takes the turn back, or runs it again, has them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from delivery.database.engine import Connection
from gateway.agents.client_history import GO_ON, EarlierMessage, to_history
from gateway.agents.history import HistoryEntry, encode_entry
from gateway.store.conversations import histories
from gateway.store.conversations.conversations import Conversation

ADDED = "history"
"""The key of added messages in a context."""


async def begin_history(connection: Connection, conversation: Conversation, entry: HistoryEntry) -> None:
    """Store what was said before; a conversation that has had a turn keeps the history of its own."""
    if await histories.is_unused(connection, conversation.id):
        await _append(connection, conversation, entry)


async def replace_history(
    connection: Connection, conversation: Conversation, entry: HistoryEntry | None
) -> None:
    """Replace what a conversation without turns begins with."""
    await histories.delete_all(connection, conversation.id)
    if entry is not None:
        await _append(connection, conversation, entry)


async def _append(connection: Connection, conversation: Conversation, entry: HistoryEntry) -> None:
    await histories.append(
        connection,
        account=conversation.account,
        conversation=conversation.id,
        turn=None,
        body=encode_entry(entry),
    )


def with_added(context: Mapping[str, Any] | None, added: Mapping[str, EarlierMessage]) -> dict[str, Any]:
    """Return a context with messages of a client, by the ids of their items."""
    stored = [{"id": id_, **message.to_json()} for id_, message in added.items()]
    return {**(context or {}), ADDED: [*(context or {}).get(ADDED, ()), *stored]}


def without_added(context: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a context without the messages of a client; None if nothing is left."""
    return {key: value for key, value in (context or {}).items() if key != ADDED} or None


def added_entry(turn: str, context: Mapping[str, Any] | None) -> HistoryEntry | None:
    """Return the messages that were added before a turn as an entry of a history, or None."""
    messages = [EarlierMessage.from_json(one) for one in (context or {}).get(ADDED, ())]
    return to_history(messages, opening=GO_ON, calls=f"added_{turn}")


def after_added(turn: str, context: Mapping[str, Any] | None, entry: HistoryEntry) -> HistoryEntry:
    """Return what a turn adds to the history, with the messages that were added before it.

    An entry that replaces all earlier ones has them already.
    """
    added = None if entry.replaces else added_entry(turn, context)
    return entry if added is None else replace(entry, messages=(*added.messages, *entry.messages))


def added_as_earlier(context: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a context whose added messages are lines, for a message that a running turn receives."""
    said: Sequence[Mapping[str, Any]] = (context or {}).get(ADDED, ())
    lines = [{"name": one["role"], "text": one["text"]} for one in said if one["text"]]
    left = without_added(context)
    return {**(left or {}), "earlier": [*(left or {}).get("earlier", ()), *lines]} if lines else left
