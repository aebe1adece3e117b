"""Add the ordering key of deliveries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; unfinished deliveries keep the order of their conversation or endpoint."""
    with op.batch_alter_table("deliveries", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("ordering_key", sa.String(length=320), nullable=False, server_default="")
        )
    op.execute(
        "UPDATE deliveries SET ordering_key = "
        "CASE WHEN kind = 'webhook' OR conversation IS NULL THEN destination ELSE conversation END"
    )
