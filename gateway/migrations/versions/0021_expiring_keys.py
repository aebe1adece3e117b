"""Let keys expire, and name the person who signed in with one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, and the index by which expired keys are found."""
    op.add_column("keys", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("keys", sa.Column("subject", sa.String(length=255), nullable=True))
    op.create_index(op.f("ix_keys_expires_at"), "keys", ["expires_at"])
