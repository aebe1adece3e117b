"""Deliveries to chats."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply this revision."""
    with op.batch_alter_table("drafts") as drafts:
        drafts.add_column(sa.Column("turn", sa.String(length=80), nullable=True))
        drafts.add_column(sa.Column("shown", sa.Text(), nullable=True))
        drafts.add_column(sa.Column("ended_by", sa.String(length=40), nullable=True))
        drafts.create_index("ix_drafts_turn", ["turn"])
    op.create_table(
        "allowances",
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("level", sa.Float(), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.Column("strict_until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_allowances")),
    )
