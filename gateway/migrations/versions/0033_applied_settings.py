"""Store which settings the last start applied to a record."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("records", sa.Column("applied", sa.JSON()))
