"""Add memories with their full-text index, and whether a conversation is a direct chat."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_ADD = "INSERT INTO memory_words (rowid, account, words) VALUES (new.position, new.account, new.words);"
_REMOVE = (
    "INSERT INTO memory_words (memory_words, rowid, account, words) "
    "VALUES ('delete', old.position, old.account, old.words);"
)
_TABLE = (
    "CREATE VIRTUAL TABLE memory_words USING fts5("
    "account, words, content='memories', content_rowid='position', tokenize='unicode61 remove_diacritics 0')"
)
_SQLITE = (
    _TABLE,
    f"CREATE TRIGGER memories_inserted AFTER INSERT ON memories BEGIN {_ADD} END",
    f"CREATE TRIGGER memories_deleted AFTER DELETE ON memories BEGIN {_REMOVE} END",
    f"CREATE TRIGGER memories_changed AFTER UPDATE OF account, words ON memories BEGIN {_REMOVE} {_ADD} END",
)
_POSTGRESQL = ("CREATE INDEX memory_words ON memories USING gin (to_tsvector('simple', words))",)


def upgrade() -> None:
    """Create the table and its index, and add the column."""
    op.create_table(
        "memories",
        sa.Column("position", BIG_KEY, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("scope", sa.String(length=20), nullable=False),
        sa.Column("subject", sa.String(length=600), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_memories_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_memories")),
        sa.UniqueConstraint("id", name=op.f("uq_memories_id")),
    )
    op.create_index("ix_memories_subject", "memories", ["account", "scope", "subject"])
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    for statement in _POSTGRESQL if is_postgresql else _SQLITE:
        op.execute(statement)
    op.add_column("conversations", sa.Column("direct", sa.Boolean(), nullable=True))
