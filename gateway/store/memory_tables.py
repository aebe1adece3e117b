"""The table of memories."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, String, Table, Text

from delivery.database.engine import metadata
from delivery.database.tables import BigKey, UtcDateTime

memories = Table(
    "memories",
    metadata,
    Column("position", BigKey, primary_key=True, autoincrement=True),
    Column("id", String(40), nullable=False, unique=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("scope", String(20), nullable=False),
    Column("subject", String(600), nullable=False),
    Column("text", Text, nullable=False),
    Column("words", Text, nullable=False),
    Column("created_by", String(200), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Index("ix_memories_subject", "account", "scope", "subject"),
)
"""Notes about a person, a room, an agent or the account; `words` is the text as full-text search reads it."""

SEARCH_INDEX = "memory_words"
"""The full-text index, which SQLAlchemy cannot describe: a table of FTS5, or an index of PostgreSQL."""


def is_described(name: str | None, kind: str, _parents: object = None) -> bool:
    """Return whether the tables in the code describe a database object, for comparisons of schemas."""
    return kind not in {"table", "index"} or not (name or "").startswith(SEARCH_INDEX)
