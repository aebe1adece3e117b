"""Add titles of conversations and the time of their last activity."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SET_TITLES = """
    UPDATE conversations SET title = (
        SELECT substr(trim(replace(m.text, :newline, ' ')), 1, 80) FROM messages m
        WHERE m.conversation = conversations.id AND m.role = 'user' AND trim(m.text) <> ''
        ORDER BY m.position LIMIT 1
    )
"""
_SET_TIMES = """
    UPDATE streams SET active_at = coalesce(
        (SELECT max(m.created_at) FROM messages m WHERE m.conversation = streams.conversation),
        (SELECT c.created_at FROM conversations c WHERE c.id = streams.conversation),
        active_at
    )
"""


def upgrade() -> None:
    """Add the columns; titles come from first messages, times from last messages."""
    with op.batch_alter_table("conversations", schema=None) as batch_op:
        batch_op.add_column(sa.Column("title", sa.String(length=200), nullable=True))
    with op.batch_alter_table("streams", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "active_at",
                sa.DateTime(timezone=True),
                nullable=False,
                server_default="1970-01-01 00:00:00.000000",
            )
        )
        batch_op.create_index("ix_streams_activity", ["account", "active_at", "conversation"])
    op.execute(sa.text(_SET_TITLES).bindparams(newline="\n"))
    op.execute(sa.text(_SET_TIMES))
