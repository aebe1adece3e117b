"""Add the sign-ins of agents that left the settings file, until their tokens are revoked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "ended_sign_ins",
        sa.Column("agent", sa.String(length=40), nullable=False),
        sa.Column("server", sa.String(length=40), nullable=False),
        sa.Column("person", sa.String(length=600), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_ended_sign_ins_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("agent", "server", "person", name=op.f("pk_ended_sign_ins")),
    )
    op.create_index(op.f("ix_ended_sign_ins_account"), "ended_sign_ins", ["account"])
