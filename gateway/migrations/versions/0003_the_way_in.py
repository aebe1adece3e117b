"""The way in: queue modes, what edits and reactions point at, approvals that are asked for anew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply this revision."""
    with op.batch_alter_table("conversations") as batch_op:
        batch_op.add_column(sa.Column("queue_mode", sa.String(length=20), nullable=True))
        batch_op.add_column(sa.Column("queue_limit", sa.Integer(), nullable=True))
    with op.batch_alter_table("messages") as batch_op:
        batch_op.add_column(sa.Column("platform_id", sa.String(length=200), nullable=True))
        batch_op.create_index("ix_messages_turn", ["turn"])
        batch_op.create_index("ix_messages_platform_id", ["platform_id", "conversation"])
    with op.batch_alter_table("turns") as batch_op:
        batch_op.add_column(sa.Column("cancel_why", sa.String(length=40), nullable=True))
        batch_op.add_column(sa.Column("mode", sa.String(length=20), nullable=True))
        batch_op.add_column(sa.Column("merged_into", sa.String(length=40), nullable=True))
    with op.batch_alter_table("approvals") as batch_op:
        batch_op.add_column(sa.Column("decided_name", sa.String(length=200), nullable=True))
        batch_op.drop_constraint(op.f("uq_approvals_turn_call"), type_="unique")
    op.create_table(
        "inputs",
        sa.Column("turn", sa.String(length=40), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=40), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn"], ["turns.id"], name=op.f("fk_inputs_turn_turns"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("turn", "place", name=op.f("pk_inputs")),
        sa.UniqueConstraint("source", name=op.f("uq_inputs_source")),
    )
