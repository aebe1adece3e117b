"""The history that a client begins a conversation with: what the agent's first turn gets as its past."""

from __future__ import annotations

from delivery.database.engine import Connection
from gateway.agents.history import HistoryEntry, encode_entry
from gateway.store.conversations import histories
from gateway.store.conversations.conversations import Conversation


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
