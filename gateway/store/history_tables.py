"""The tables of conversations' histories and of the branches that people left."""

from __future__ import annotations

from sqlalchemy import JSON, Column, ForeignKey, Index, LargeBinary, String, Table

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

branches = Table(
    "branches",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("conversation", String(40), ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("turn", String(40), nullable=False),
    Column("turns", JSON, nullable=False),
    Column("rerun", String(40)),
    Column("by", String(200), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_branches_conversation", "conversation", "created_at"),
)
"""Branches of conversations that were left by `/undo` or by running an edited message again.

`turns` are the turns that the agent no longer knows of, oldest first, from `turn` on. `rerun` is the turn
that runs in their place, if there is one.
"""
