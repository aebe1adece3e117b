"""Add the sign-ins of people at MCP servers, and the lists of the servers' prompts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "mcp_sign_ins",
        sa.Column("agent", sa.String(length=40), nullable=False),
        sa.Column("server", sa.String(length=40), nullable=False),
        sa.Column("person", sa.String(length=600), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["agent"], ["records.id"], name=op.f("fk_mcp_sign_ins_agent_records"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("agent", "server", "person", name=op.f("pk_mcp_sign_ins")),
    )
    op.create_table(
        "mcp_prompts",
        sa.Column("agent", sa.String(length=40), nullable=False),
        sa.Column("server", sa.String(length=40), nullable=False),
        sa.Column("person", sa.String(length=600), nullable=False),
        sa.Column("commands", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["agent"], ["records.id"], name=op.f("fk_mcp_prompts_agent_records"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("agent", "server", "person", name=op.f("pk_mcp_prompts")),
    )
