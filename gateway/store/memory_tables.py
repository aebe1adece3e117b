"""The tables of memories, and of the people that they are about."""

from __future__ import annotations

from sqlalchemy import JSON, Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint

from delivery.database.engine import metadata
from delivery.database.partial_indexes import partial_index
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

persons = Table(
    "persons",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("subject", String(600), nullable=False),
    Column("code_digest", String(64)),
    Column("code_expires_at", UtcDateTime),
    Column("budget", JSON(none_as_null=True)),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("account", "subject"),
    Index("ix_persons_code", "account", "code_digest"),
    partial_index("ix_persons_budget", "account", where="budget is not null"),
)
"""`subject` names the person in notes and in the owners of sandboxes and workspaces; it never changes.

`code_digest` is the hash of the code that joins another identity to the person, until `code_expires_at`.
`budget` are the person's own limits, in place of those that the account gives to everybody.
"""

identities = Table(
    "identities",
    metadata,
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("id", String(600), primary_key=True),
    Column("person", String(40), ForeignKey("persons.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("platform", String(300), nullable=False),
    Column("author", String(200), nullable=False),
    Column("name", String(200), nullable=False),
    Column("failures", Integer, nullable=False, default=0),
    Column("failed_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
)
"""A person's account on a platform; `failures` counts wrong codes since `failed_at`."""

SEARCH_INDEX = "memory_words"
"""The full-text index, which SQLAlchemy cannot describe: a table of FTS5, or an index of PostgreSQL."""


def is_described(name: str | None, kind: str, _parents: object = None) -> bool:
    """Return whether the tables in the code describe a database object, for comparisons of schemas."""
    return kind not in {"table", "index"} or not (name or "").startswith(SEARCH_INDEX)
