"""Keep what people say in rooms as context."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of room messages, and the columns for the context of turns."""
    op.create_table(
        "room_messages",
        sa.Column(
            "position",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("room", sa.String(length=600), nullable=False),
        sa.Column("event_key", sa.String(length=300), nullable=False),
        sa.Column("thread", sa.String(length=200), nullable=False),
        sa.Column("platform_id", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("author", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_room_messages_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_room_messages")),
        sa.UniqueConstraint("room", "event_key", name=op.f("uq_room_messages_room_event_key")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("room_messages", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_room_messages_account"), ["account"], unique=False)
        batch_op.create_index(batch_op.f("ix_room_messages_created_at"), ["created_at"], unique=False)
        batch_op.create_index("ix_room_messages_room", ["room", "position"], unique=False)

    with op.batch_alter_table("conversations", schema=None) as batch_op:
        batch_op.add_column(sa.Column("room_position", sa.BigInteger(), nullable=True))

    with op.batch_alter_table("turns", schema=None) as batch_op:
        batch_op.add_column(sa.Column("context", sa.JSON(), nullable=True))
