"""Add the models that people select, and people with their identities on platforms."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and tables."""
    op.add_column("conversations", sa.Column("model", sa.String(length=200)))
    op.add_column("turns", sa.Column("model", sa.String(length=200)))
    op.create_table(
        "persons",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("subject", sa.String(length=600), nullable=False),
        sa.Column("code_digest", sa.String(length=64)),
        sa.Column("code_expires_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_persons_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_persons")),
        sa.UniqueConstraint("account", "subject", name=op.f("uq_persons_account_subject")),
    )
    op.create_index("ix_persons_code", "persons", ["account", "code_digest"])
    op.create_table(
        "identities",
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("id", sa.String(length=600), nullable=False),
        sa.Column("person", sa.String(length=40), nullable=False),
        sa.Column("platform", sa.String(length=300), nullable=False),
        sa.Column("author", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failed_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_identities_account_accounts"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["person"], ["persons.id"], name=op.f("fk_identities_person_persons"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("account", "id", name=op.f("pk_identities")),
    )
    op.create_index(op.f("ix_identities_person"), "identities", ["person"])
