"""Add the name that a deleted agent had, for its usage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("usage_totals", sa.Column("deleted_name", sa.String(length=200), nullable=True))
