"""Replicas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply this revision."""
    with op.batch_alter_table("replies") as replies:
        replies.add_column(sa.Column("holder", sa.String(length=80), nullable=True))
