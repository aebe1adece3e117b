"""Store the account in the rows of every table that belongs to accounts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

OWNERS = {
    "attempts": "SELECT deliveries.account FROM deliveries WHERE deliveries.id = attempts.delivery",
    "bundle_files": "SELECT records.account FROM records WHERE records.id = bundle_files.record",
    "channel_notes": "SELECT records.account FROM records WHERE records.id = channel_notes.channel",
    "channel_secrets": "SELECT records.account FROM records WHERE records.id = channel_secrets.channel",
    "drafts": "SELECT turns.account FROM turns WHERE turns.id = COALESCE(NULLIF(drafts.turn, ''), message)",
    "inputs": "SELECT turns.account FROM turns WHERE turns.id = inputs.turn",
    "job_progress": "SELECT jobs.account FROM jobs WHERE jobs.id = job_progress.job",
    "mcp_prompts": "SELECT records.account FROM records WHERE records.id = mcp_prompts.agent",
    "mcp_sign_ins": "SELECT records.account FROM records WHERE records.id = mcp_sign_ins.agent",
    "messages": "SELECT conversations.account FROM conversations"
    " WHERE conversations.id = messages.conversation",
    "outbox": "SELECT streams.account FROM streams WHERE streams.conversation = outbox.conversation",
    "pairings": "SELECT records.account FROM records WHERE records.id = pairings.channel",
    "steps": "SELECT turns.account FROM turns WHERE turns.id = steps.turn",
}
"""The query of the account of a row, by table."""

OWNER_OF_STEPS_SHOWN = "SELECT MIN(routes.account) FROM routes WHERE routes.target = drafts.target"
"""The row of a chat message that shows a turn's steps names no turn."""


def upgrade() -> None:
    """Add the columns and fill them from the owning rows; rows without an owner are deleted."""
    op.execute("DELETE FROM erasures")  # their events are deleted with the subjects of earlier versions
    for table in (*OWNERS, "erasures"):
        op.add_column(table, sa.Column("account", sa.String(length=40), nullable=True))
    for table, owner in OWNERS.items():
        op.execute(f"UPDATE {table} SET account = ({owner})")  # noqa: S608 - constants
    op.execute(f"UPDATE drafts SET account = ({OWNER_OF_STEPS_SHOWN}) WHERE account IS NULL")  # noqa: S608
    for table in (*OWNERS, "erasures"):
        op.execute(f"DELETE FROM {table} WHERE account IS NULL")  # noqa: S608 - constants
        with op.batch_alter_table(table) as batch:
            batch.alter_column("account", existing_type=sa.String(length=40), nullable=False)
