"""Add budgets of days and months, the time zones of accounts, and schedules that may end silently."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the table; earlier rows have no reservation, and no schedule is a heartbeat."""
    op.add_column("accounts", sa.Column("timezone", sa.String(length=64)))
    op.add_column(
        "schedules", sa.Column("heartbeat", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("persons", sa.Column("budget", sa.JSON(none_as_null=True)))
    _create_partial_index("ix_persons_budget", "persons", "account", where="budget is not null")
    op.add_column("usage", sa.Column("reserved", sa.JSON(none_as_null=True)))
    op.add_column("usage", sa.Column("reserved_until", sa.DateTime(timezone=True)))
    _create_partial_index(
        "ix_usage_reserved_until", "usage", "reserved_until", where="reserved_until is not null"
    )
    op.create_table(
        "budget_counters",
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("owner", sa.String(length=600), nullable=False),
        sa.Column("period", sa.String(length=20), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("ceiling", sa.BigInteger(), nullable=False),
        sa.Column("warned", sa.Boolean(), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_budget_counters_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("account", "owner", "period", "kind", name=op.f("pk_budget_counters")),
    )
    op.create_index(op.f("ix_budget_counters_ends_at"), "budget_counters", ["ends_at"])


def _create_partial_index(name: str, table: str, column: str, *, where: str) -> None:
    op.create_index(name, table, [column], sqlite_where=sa.text(where), postgresql_where=sa.text(where))
