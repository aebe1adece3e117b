"""Store histories as one row for each turn, and index what is looked up regularly."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table of histories with what was stored so far, and the indexes."""
    _create_histories()
    _index_unfinished_work()
    _index_lookups()


def _create_histories() -> None:
    op.create_table(
        "histories",
        sa.Column("position", BIG_KEY, autoincrement=True, nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("turn", sa.String(length=40), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_histories_account_accounts"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
            name=op.f("fk_histories_conversation_conversations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_histories")),
    )
    op.create_index(op.f("ix_histories_account"), "histories", ["account"])
    op.create_index("ix_histories_conversation", "histories", ["conversation", "position"])
    op.execute(
        "INSERT INTO histories (account, conversation, body, created_at) "
        "SELECT account, id, history, created_at FROM conversations WHERE history IS NOT NULL"
    )
    op.drop_column("conversations", "history")


def _index_unfinished_work() -> None:
    """Replace indexes of all rows by indexes of those that sweeps and gauges ask for."""
    op.drop_index("ix_deliveries_due", "deliveries")
    op.drop_index("ix_turns_state", "turns")
    open_deliveries = "state IN ('pending', 'sending', 'retrying', 'parked')"
    _partial("ix_deliveries_open", "deliveries", ["destination", "position"], open_deliveries)
    _partial("ix_deliveries_failed", "deliveries", ["state"], "state IN ('ambiguous', 'dead')")
    approvals = "event_type = 'approval.requested'"
    _partial("ix_deliveries_approvals", "deliveries", ["destination", "platform_id"], approvals)
    _partial("ix_destinations_dead", "destinations", ["destination"], "dead_at IS NOT NULL")
    _partial("ix_streams_behind", "streams", ["conversation"], "relayed_n < last_n")
    open_turns = "state IN ('queued', 'running', 'waiting')"
    _partial("ix_turns_open", "turns", ["conversation", "position"], open_turns)
    given_up = "state = 'failed' AND retried_as IS NULL AND substr(error, 1, 10) = 'given up: '"
    _partial("ix_turns_dead", "turns", ["conversation"], given_up)
    _partial("ix_approvals_pending", "approvals", ["created_at"], "state = 'pending'")
    _partial("ix_pairings_requests", "pairings", ["expires_at"], "paired_at IS NULL")
    _partial("ix_schedules_ended", "schedules", ["last_at"], "state = 'ended'")
    _partial("ix_blobs_dropping", "blobs", ["sha256"], "dropping")


def _index_lookups() -> None:
    _partial("ix_routes_turn", "routes", ["turn"], "turn IS NOT NULL")
    _partial("ix_files_job", "files", ["job"], "job IS NOT NULL")
    op.create_index("ix_approvals_conversation", "approvals", ["conversation"])
    op.create_index("ix_jobs_conversation", "jobs", ["conversation"])
    op.create_index("ix_outbox_created_at", "outbox", ["created_at"])
    op.create_index("ix_outbox_turn", "outbox", ["turn"])
    op.create_index("ix_records_kind", "records", ["kind", "id"])
    op.create_index("ix_sandboxes_sandbox", "sandboxes", ["sandbox", "provider"])
    op.create_index("ix_usage_ended_at", "usage", ["ended_at"])


def _partial(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
