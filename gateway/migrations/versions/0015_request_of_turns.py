"""Store what a client's request adds to its turn, and its own items and metadata of a conversation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; earlier rows have nothing in them."""
    with op.batch_alter_table("turns", schema=None) as batch_op:
        batch_op.add_column(sa.Column("request", sa.JSON(), nullable=True))
    with op.batch_alter_table("conversations", schema=None) as batch_op:
        batch_op.add_column(sa.Column("client_state", sa.JSON(), nullable=True))
