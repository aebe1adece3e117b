"""Reserved sandboxes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Apply this revision."""
    _installations()
    _sandboxes()
    _sandbox_leases()
    _usage()
    _usage_totals()
    _budgets()


def _installations() -> None:
    op.create_table(
        "installations",
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("place", name=op.f("pk_installations")),
    )


def _sandboxes() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("label", sa.String(length=120), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("scope", sa.String(length=20), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("agent", sa.String(length=40), nullable=False),
        sa.Column("person", sa.String(length=200), nullable=False),
        sa.Column("record", sa.String(length=40), nullable=True),
        sa.Column("workspace", sa.String(length=40), nullable=True),
        sa.Column("provider", sa.String(length=40), nullable=False),
        sa.Column("persistent", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("sandbox", sa.String(length=200), nullable=True),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("lock_version", sa.Integer(), nullable=False),
        sa.Column("boot", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("active_since", MOMENT, nullable=True),
        sa.Column("made_at", MOMENT, nullable=True),
        sa.Column("used_at", MOMENT, nullable=False),
        sa.Column("changed_at", MOMENT, nullable=False),
        sa.Column("idle_timeout", sa.Float(), nullable=False),
        sa.Column("max_lifetime", sa.Float(), nullable=False),
        sa.Column("snapshot", sa.String(length=300), nullable=True),
        sa.Column("snapshot_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_sandboxes_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("label", name=op.f("pk_sandboxes")),
    )
    op.create_index(op.f("ix_sandboxes_account"), "sandboxes", ["account"])


def _sandbox_leases() -> None:
    op.create_table(
        "sandbox_leases",
        sa.Column("label", sa.String(length=120), nullable=False),
        sa.Column("holder", sa.String(length=80), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("label", name=op.f("pk_sandbox_leases")),
    )
    op.create_index(op.f("ix_sandbox_leases_expires_at"), "sandbox_leases", ["expires_at"])


def _usage() -> None:
    op.create_table(
        "usage",
        sa.Column("id", sa.String(length=60), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("agent", sa.String(length=40), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("what", sa.String(length=200), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("micros", sa.BigInteger(), nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_usage_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage")),
    )
    op.create_index(op.f("ix_usage_account"), "usage", ["account", "ended_at"])


def _usage_totals() -> None:
    op.create_table(
        "usage_totals",
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("agent", sa.String(length=40), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("micros", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_usage_totals_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("account", "agent", name=op.f("pk_usage_totals")),
    )


def _budgets() -> None:
    op.create_table(
        "budgets",
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_budgets_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_budgets")),
    )
