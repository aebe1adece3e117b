"""Add the files of answers, and the usage of a turn when it began to wait for one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("approvals", sa.Column("files", sa.JSON(), nullable=True))
    op.add_column("approvals", sa.Column("usage", sa.JSON(), nullable=True))
