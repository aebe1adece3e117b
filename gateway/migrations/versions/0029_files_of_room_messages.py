"""Add the files of messages that are kept as context of a room."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("room_messages", sa.Column("files", sa.JSON(), nullable=True))
