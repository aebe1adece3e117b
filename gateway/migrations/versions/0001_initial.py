"""Create every table."""
# ruff: noqa: PLR0915  (one statement a table)

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and their indexes."""
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )
    op.create_table(
        "allowances",
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("level", sa.Float(), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.Column("strict_until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_allowances")),
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
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_account"), ["account"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_created_at"), ["created_at"], unique=False)

    op.create_table(
        "blobs",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("dropping", sa.Boolean(), nullable=False),
        sa.Column("touched_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_blobs")),
    )
    with op.batch_alter_table("blobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_blobs_touched_at"), ["touched_at"], unique=False)

    op.create_table(
        "channel_notes",
        sa.Column("channel", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("note", sa.String(length=1000), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("channel", "name", name=op.f("pk_channel_notes")),
    )
    with op.batch_alter_table("channel_notes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_channel_notes_updated_at"), ["updated_at"], unique=False)

    op.create_table(
        "deliveries",
        sa.Column(
            "position",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("event_id", sa.String(length=80), nullable=False),
        sa.Column("event_type", sa.String(length=40), nullable=False),
        sa.Column("event_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=True),
        sa.Column("turn", sa.String(length=40), nullable=True),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("destination", sa.String(length=300), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("armed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("armed_from", sa.Integer(), nullable=False),
        sa.Column("uncertain", sa.Boolean(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("platform_id", sa.String(length=200), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_deliveries")),
        sa.UniqueConstraint(
            "event_id", "kind", "target", "part", name=op.f("uq_deliveries_event_id_kind_target_part")
        ),
        sa.UniqueConstraint("id", name=op.f("uq_deliveries_id")),
    )
    with op.batch_alter_table("deliveries", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_deliveries_account"), ["account"], unique=False)
        batch_op.create_index(batch_op.f("ix_deliveries_conversation"), ["conversation"], unique=False)
        batch_op.create_index("ix_deliveries_due", ["destination", "state", "position"], unique=False)
        batch_op.create_index(batch_op.f("ix_deliveries_event_id"), ["event_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_deliveries_turn"), ["turn"], unique=False)

    op.create_table(
        "destinations",
        sa.Column("destination", sa.String(length=300), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("held_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dead_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dead_why", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("destination", name=op.f("pk_destinations")),
    )
    op.create_table(
        "drafts",
        sa.Column("message", sa.String(length=80), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("platform_id", sa.String(length=200), nullable=True),
        sa.Column("busy_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("turn", sa.String(length=80), nullable=True),
        sa.Column("shown", sa.Text(), nullable=True),
        sa.Column("ended_by", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("message", "target", name=op.f("pk_drafts")),
    )
    with op.batch_alter_table("drafts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_drafts_created_at"), ["created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_drafts_turn"), ["turn"], unique=False)

    op.create_table(
        "endpoints",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=True),
        sa.Column("origin", sa.String(length=80), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=True),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("previous_secret", sa.LargeBinary(), nullable=True),
        sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_why", sa.Text(), nullable=True),
        sa.Column("ordered", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoints")),
        sa.UniqueConstraint("account", "name", name=op.f("uq_endpoints_account_name")),
    )
    with op.batch_alter_table("endpoints", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_endpoints_account"), ["account"], unique=False)

    op.create_table(
        "epochs",
        sa.Column("stream", sa.String(length=40), nullable=False),
        sa.Column("created", sa.String(length=40), nullable=False),
        sa.Column("high_water", sa.BigInteger(), nullable=False),
        sa.Column("bumps", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_epochs")),
    )
    op.create_table(
        "erasures",
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("conversation", name=op.f("pk_erasures")),
    )
    op.create_table(
        "inbox",
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("source", sa.String(length=40), nullable=False),
        sa.Column("event_key", sa.String(length=300), nullable=False),
        sa.Column("message", sa.String(length=40), nullable=True),
        sa.Column("turn", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("account", "source", "event_key", name=op.f("pk_inbox")),
    )
    with op.batch_alter_table("inbox", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_inbox_created_at"), ["created_at"], unique=False)

    op.create_table(
        "installations",
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("place", name=op.f("pk_installations")),
    )
    op.create_table(
        "marks",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_marks")),
    )
    op.create_table(
        "pairings",
        sa.Column("channel", sa.String(length=40), nullable=False),
        sa.Column("person", sa.String(length=200), nullable=False),
        sa.Column("code", sa.String(length=20), nullable=True),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("paired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("channel", "person", name=op.f("pk_pairings")),
    )
    op.create_table(
        "replies",
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("holder", sa.String(length=80), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("account", "idempotency_key", name=op.f("pk_replies")),
    )
    with op.batch_alter_table("replies", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_replies_created_at"), ["created_at"], unique=False)

    op.create_table(
        "routes",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("turn", sa.String(length=40), nullable=True),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_routes")),
        sa.UniqueConstraint(
            "conversation", "turn", "kind", "target", name=op.f("uq_routes_conversation_turn_kind_target")
        ),
    )
    with op.batch_alter_table("routes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_routes_conversation"), ["conversation"], unique=False)

    op.create_table(
        "sandbox_leases",
        sa.Column("label", sa.String(length=120), nullable=False),
        sa.Column("holder", sa.String(length=80), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("label", name=op.f("pk_sandbox_leases")),
    )
    with op.batch_alter_table("sandbox_leases", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sandbox_leases_expires_at"), ["expires_at"], unique=False)

    op.create_table(
        "streams",
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("agent", sa.String(length=40), nullable=False),
        sa.Column("last_n", sa.Integer(), nullable=False),
        sa.Column("relayed_n", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("conversation", name=op.f("pk_streams")),
    )
    with op.batch_alter_table("streams", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_streams_account"), ["account"], unique=False)

    op.create_table(
        "attempts",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("delivery", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("duration_ms", sa.Float(), nullable=True),
        sa.Column("outcome", sa.String(length=20), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("excerpt", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["delivery"], ["deliveries.id"], name=op.f("fk_attempts_delivery_deliveries"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attempts_delivery"), ["delivery"], unique=False)

    op.create_table(
        "budgets",
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_budgets_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_budgets")),
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("agent", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=True),
        sa.Column("channel", sa.String(length=40), nullable=True),
        sa.Column("address_key", sa.String(length=600), nullable=True),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("queue_mode", sa.String(length=20), nullable=True),
        sa.Column("queue_limit", sa.Integer(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("history", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_conversations_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_conversations")),
        sa.UniqueConstraint("account", "address_key", name=op.f("uq_conversations_account_address_key")),
        sa.UniqueConstraint("account", "name", name=op.f("uq_conversations_account_name")),
    )
    with op.batch_alter_table("conversations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_conversations_account"), ["account"], unique=False)

    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_keys_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_keys_digest")),
    )
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_keys_account"), ["account"], unique=False)

    op.create_table(
        "outbox",
        sa.Column("event_id", sa.String(length=80), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column("turn", sa.String(length=40), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["streams.conversation"],
            name=op.f("fk_outbox_conversation_streams"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_outbox")),
        sa.UniqueConstraint("conversation", "n", name=op.f("uq_outbox_conversation_n")),
    )
    op.create_table(
        "records",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("secrets", sa.JSON(), nullable=False),
        sa.Column("managed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_records_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_records")),
        sa.UniqueConstraint("account", "kind", "name", name=op.f("uq_records_account_kind_name")),
    )
    with op.batch_alter_table("records", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_records_account"), ["account"], unique=False)

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
        sa.Column("active_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("idle_timeout", sa.Float(), nullable=False),
        sa.Column("max_lifetime", sa.Float(), nullable=False),
        sa.Column("snapshot", sa.String(length=300), nullable=True),
        sa.Column("snapshot_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_sandboxes_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("label", name=op.f("pk_sandboxes")),
    )
    with op.batch_alter_table("sandboxes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sandboxes_account"), ["account"], unique=False)

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
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_usage_account_accounts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage")),
    )
    with op.batch_alter_table("usage", schema=None) as batch_op:
        batch_op.create_index("ix_usage_account", ["account", "ended_at"], unique=False)

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
    op.create_table(
        "approvals",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("turn", sa.String(length=40), nullable=False),
        sa.Column("call", sa.String(length=120), nullable=False),
        sa.Column("tool", sa.String(length=60), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("decided_by", sa.String(length=200), nullable=True),
        sa.Column("decided_name", sa.String(length=200), nullable=True),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_approvals_account_accounts"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
            name=op.f("fk_approvals_conversation_conversations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
    )
    with op.batch_alter_table("approvals", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_approvals_account"), ["account"], unique=False)
        batch_op.create_index(batch_op.f("ix_approvals_turn"), ["turn"], unique=False)

    op.create_table(
        "bundle_files",
        sa.Column("record", sa.String(length=40), nullable=False),
        sa.Column("path", sa.String(length=500), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["record"], ["records.id"], name=op.f("fk_bundle_files_record_records"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("record", "path", name=op.f("pk_bundle_files")),
    )
    op.create_table(
        "files",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=True),
        sa.Column("turn", sa.String(length=40), nullable=True),
        sa.Column("job", sa.String(length=40), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("version", sa.String(length=80), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("type", sa.String(length=120), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("caption", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("noted_turn", sa.String(length=40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_files_account_accounts"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
            name=op.f("fk_files_conversation_conversations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
        sa.UniqueConstraint("conversation", "identity", name=op.f("uq_files_conversation_identity")),
    )
    with op.batch_alter_table("files", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_files_account"), ["account"], unique=False)
        batch_op.create_index(batch_op.f("ix_files_created_at"), ["created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_files_sha256"), ["sha256"], unique=False)
        batch_op.create_index(batch_op.f("ix_files_turn"), ["turn"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("turn", sa.String(length=40), nullable=False),
        sa.Column("agent", sa.String(length=40), nullable=False),
        sa.Column("asker", sa.String(length=200), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("provider", sa.String(length=40), nullable=False),
        sa.Column("sandbox", sa.String(length=200), nullable=False),
        sa.Column("sandbox_record", sa.String(length=40), nullable=True),
        sa.Column("workspace", sa.String(length=40), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.String(length=80), nullable=True),
        sa.Column("token_digest", sa.LargeBinary(), nullable=False),
        sa.Column("token_sealed", sa.LargeBinary(), nullable=False),
        sa.Column("spawned_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stop_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.Column("unreachable_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_jobs_account_accounts"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
            name=op.f("fk_jobs_conversation_conversations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_account"), ["account"], unique=False)
        batch_op.create_index("ix_jobs_state", ["state", "sandbox"], unique=False)

    op.create_table(
        "messages",
        sa.Column(
            "position",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("turn", sa.String(length=40), nullable=True),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("author", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("attachments", sa.JSON(), nullable=False),
        sa.Column("platform_id", sa.String(length=200), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
            name=op.f("fk_messages_conversation_conversations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_messages")),
        sa.UniqueConstraint("id", name=op.f("uq_messages_id")),
    )
    with op.batch_alter_table("messages", schema=None) as batch_op:
        batch_op.create_index("ix_messages_conversation", ["conversation", "position"], unique=False)
        batch_op.create_index("ix_messages_platform_id", ["platform_id", "conversation"], unique=False)
        batch_op.create_index("ix_messages_turn", ["turn"], unique=False)

    op.create_table(
        "turns",
        sa.Column(
            "position",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("account", sa.String(length=40), nullable=False),
        sa.Column("conversation", sa.String(length=40), nullable=False),
        sa.Column("agent", sa.String(length=40), nullable=False),
        sa.Column("trigger", sa.String(length=20), nullable=False),
        sa.Column("message", sa.String(length=40), nullable=True),
        sa.Column("job", sa.String(length=40), nullable=True),
        sa.Column("asker", sa.String(length=200), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("runner", sa.String(length=80), nullable=True),
        sa.Column("cancel", sa.Boolean(), nullable=False),
        sa.Column("cancel_why", sa.String(length=40), nullable=True),
        sa.Column("mode", sa.String(length=20), nullable=True),
        sa.Column("merged_into", sa.String(length=40), nullable=True),
        sa.Column("retried_as", sa.String(length=40), nullable=True),
        sa.Column("notify", sa.Boolean(), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("paused", sa.LargeBinary(), nullable=True),
        sa.Column("usage", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.id"], name=op.f("fk_turns_account_accounts"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversations.id"],
            name=op.f("fk_turns_conversation_conversations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_turns")),
        sa.UniqueConstraint("id", name=op.f("uq_turns_id")),
        sa.UniqueConstraint("job", name=op.f("uq_turns_job")),
    )
    with op.batch_alter_table("turns", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_turns_account"), ["account"], unique=False)
        batch_op.create_index("ix_turns_queue", ["conversation", "state", "position"], unique=False)
        batch_op.create_index("ix_turns_state", ["state"], unique=False)

    op.create_table(
        "inputs",
        sa.Column("turn", sa.String(length=40), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=40), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn"], ["turns.id"], name=op.f("fk_inputs_turn_turns"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("turn", "place", name=op.f("pk_inputs")),
        sa.UniqueConstraint("source", name=op.f("uq_inputs_source")),
    )
    op.create_table(
        "steps",
        sa.Column("turn", sa.String(length=40), nullable=False),
        sa.Column("step_key", sa.String(length=120), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("tool", sa.String(length=60), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["turn"], ["turns.id"], name=op.f("fk_steps_turn_turns"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn", "step_key", name=op.f("pk_steps")),
    )
