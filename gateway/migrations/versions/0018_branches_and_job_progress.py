"""Add the branches of conversations that were left, and the progress of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "branches",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("turn", sa.String(length=40), nullable=False),
        sa.Column("turns", sa.JSON(), nullable=False),
        sa.Column("rerun", sa.String(length=40), nullable=True),
        sa.Column("by", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_branches_account_accounts"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
            name=op.f("fk_branches_conversation_conversations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_branches")),
    )
    op.create_index(op.f("ix_branches_account"), "branches", ["account"])
    op.create_index("ix_branches_conversation", "branches", ["conversation", "created_at"])
    op.create_table(
        "job_progress",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("event", sa.String(length=40), nullable=False),
        sa.Column("reports", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_job_progress_job_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_job_progress")),
    )
