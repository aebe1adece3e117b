"""Let uploads expire at a time that their client gives."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

EXPIRES = sa.text("expires_at IS NOT NULL")


def upgrade() -> None:
    """Add the column, and the index by which expired uploads are found."""
    op.add_column("files", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_files_expires", "files", ["expires_at"], sqlite_where=EXPIRES, postgresql_where=EXPIRES
    )
