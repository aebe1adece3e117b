"""Store what clients say that their uploads are for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("files", sa.Column("purpose", sa.String(64), nullable=True))
