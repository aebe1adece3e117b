"""Operations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "erasures",
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("conversation", name=op.f("pk_erasures")),
    )
    op.create_table(
        "audit",
        sa.Column(
            "position",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=True),
        sa.Column("actor", sa.String(length=80), nullable=False),
        sa.Column("action", sa.String(length=200), nullable=False),
        sa.Column("object", sa.String(length=300), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("address", sa.String(length=80), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_audit")),
        sa.UniqueConstraint("id", name=op.f("uq_audit_id")),
    )
    op.create_index(op.f("ix_audit_account"), "audit", ["account"])
    op.create_index(op.f("ix_audit_created_at"), "audit", ["created_at"])
    with op.batch_alter_table("endpoints") as endpoints:
        endpoints.add_column(sa.Column("ordered", sa.Boolean(), nullable=False, server_default="0"))
        endpoints.add_column(sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True))
    with op.batch_alter_table("turns") as turns:
        turns.add_column(sa.Column("retried_as", sa.String(length=40), nullable=True))
