"""Add the revisions of accounts, by which a process knows that what it has read of one is current."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("accounts", sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False))
