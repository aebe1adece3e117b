"""Find the messages of agents by the ids that platforms gave them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

SENT = sa.text("event_type = 'message.completed' AND platform_id IS NOT NULL")


def upgrade() -> None:
    """Create the index."""
    op.create_index(
        "ix_deliveries_messages",
        "deliveries",
        ["destination", "platform_id"],
        sqlite_where=SENT,
        postgresql_where=SENT,
    )
