"""Find old conversations without a name and without a chat."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_WHERE = sa.text("name IS NULL AND channel IS NULL")


def upgrade() -> None:
    """Create the index."""
    op.create_index(
        "ix_conversations_unnamed",
        "conversations",
        ["created_at"],
        sqlite_where=_WHERE,
        postgresql_where=_WHERE,
    )
