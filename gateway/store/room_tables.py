"""The table of what people said in rooms without addressing the bot."""

from __future__ import annotations

from sqlalchemy import JSON, Column, ForeignKey, Index, String, Table, Text, UniqueConstraint

from delivery.database.engine import metadata
from delivery.database.tables import BigKey, UtcDateTime

room_messages = Table(
    "room_messages",
    metadata,
    Column("position", BigKey, primary_key=True, autoincrement=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("room", String(600), nullable=False),
    Column("event_key", String(300), nullable=False),
    Column("thread", String(200), nullable=False),
    Column("platform_id", String(200), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("author", String(200), nullable=False),
    Column("name", String(200), nullable=False),
    Column("text", Text, nullable=False),
    Column("files", JSON(none_as_null=True)),
    Column("sent_at", UtcDateTime, nullable=False),
    Column("created_at", UtcDateTime, nullable=False, index=True),
    UniqueConstraint("room", "event_key"),
    Index("ix_room_messages_room", "room", "position"),
    sqlite_autoincrement=True,
)
"""Context for the next turn of a room: messages that were not for the bot, and changes of messages.

`room` is a channel and a room (`Address.destination`). The newest rows of each room are kept, for a week.
Conversations remember positions, so that of a deleted row is never used again (`sqlite_autoincrement`).
"""
