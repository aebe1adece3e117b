"""Store names of tools as long as models accept them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Widen the columns on PostgreSQL; SQLite does not limit texts."""
    if op.get_context().dialect.name == "postgresql":
        for table in ("steps", "approvals"):
            op.alter_column(table, "tool", type_=sa.String(length=64), existing_nullable=False)
