"""The table of conversations' histories."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, LargeBinary, String, Table

from delivery.database.engine import metadata
from delivery.database.tables import BigKey, UtcDateTime

histories = Table(
    "histories",
    metadata,
    Column("position", BigKey, primary_key=True, autoincrement=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("conversation", String(40), ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("turn", String(40)),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_histories_conversation", "conversation", "position"),
)
"""What each turn added to its conversation's history, as the agent reads it again; never changed.

An entry that replaces all earlier ones is inserted in the transaction that deletes them. Entries without a
turn are from a version that stored the whole history in one value.
"""
