"""Add the secrets of channels, which hold the tokens of the workspaces that installed a Slack app."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; it is empty until a workspace installs an app."""
    op.create_table(
        "channel_secrets",
        sa.Column("channel", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("channel", "name", name=op.f("pk_channel_secrets")),
    )
