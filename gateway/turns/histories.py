"""Histories of conversations: what each turn adds, stored where the next turn finds it."""

from __future__ import annotations

from delivery.database.engine import Connection
from gateway.agents.history import HistoryEntry, decode_entry, encode_entry
from gateway.store.conversations import conversations


async def add_entry(connection: Connection, conversation: str, entry: HistoryEntry) -> None:
    """Add what a turn ended with to its conversation's history."""
    earlier = (
        None if entry.replaces else decode_entry(await conversations.load_history(connection, conversation))
    )
    if earlier is not None:
        entry = HistoryEntry(
            messages=(*earlier.messages, *entry.messages),
            notes=(*earlier.notes, *entry.notes),
            replaces=True,
        )
    await conversations.save_history(connection, conversation, encode_entry(entry))
