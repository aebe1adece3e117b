"""The tables of schedules and triggers."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text, false

from delivery.database.engine import metadata
from delivery.database.partial_indexes import partial_index
from delivery.database.tables import UtcDateTime

schedules = Table(
    "schedules",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("conversation", String(40), ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("text", Text, nullable=False),
    Column("at", UtcDateTime),
    Column("every_seconds", BigInteger),
    Column("cron", String(100)),
    Column("timezone", String(64), nullable=False),
    Column("missed", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("next_at", UtcDateTime, index=True),
    Column("last_at", UtcDateTime),
    Column("last_turn", String(40)),
    Column("fired", Integer, nullable=False, default=0),
    Column("note", String(300), nullable=False, default=""),
    Column("heartbeat", Boolean, nullable=False, default=False, server_default=false()),
    Column("created_by", String(200), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_schedules_conversation", "conversation"),
    partial_index("ix_schedules_ended", "last_at", where="state = 'ended'"),
)
"""Turns and reminders that begin at a time; `next_at` is null unless the schedule is active.

`fired` is raised with each firing, so that one due time starts one turn although replicas compete for it. The
turns of a `heartbeat` may end without a message.
"""

triggers = Table(
    "triggers",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("conversation", String(40), ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("template", Text, nullable=False),
    Column("sealed", Text, nullable=False),
    Column("created_by", String(200), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_triggers_conversation", "conversation"),
)
"""Signed requests that start a turn; `sealed` is the encrypted secret of their signatures."""
