"""Add who handles a conversation in the agent's place."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; agents handle all conversations."""
    with op.batch_alter_table("conversations", schema=None) as batch_op:
        batch_op.add_column(sa.Column("handover_by", sa.String(length=200), nullable=True))
        batch_op.add_column(sa.Column("handover_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("carried_context", sa.JSON(), nullable=True))
