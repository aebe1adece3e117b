"""Add the models that people select for conversations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("conversations", sa.Column("model", sa.String(length=200)))
    op.add_column("turns", sa.Column("model", sa.String(length=200)))
