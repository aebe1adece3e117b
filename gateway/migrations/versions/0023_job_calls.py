"""Add the tool calls that are background jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "job_calls",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("tool", sa.String(length=64), nullable=False),
        sa.Column("server", sa.String(length=40), nullable=True),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("repeatable", sa.Boolean(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_job_calls_job_jobs"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_job_calls_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_job_calls")),
    )
    op.create_index(op.f("ix_job_calls_account"), "job_calls", ["account"])
