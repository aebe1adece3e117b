"""The tables of reserved sandboxes, of usage, and of the progress and the calls of jobs."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
)

from delivery.database.engine import metadata
from delivery.database.partial_indexes import partial_index
from delivery.database.tables import UtcDateTime

installations = Table(
    "installations",
    metadata,
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("id", String(40), nullable=False),
)
"""One row: the prefix of this installation's sandbox labels."""

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("label", String(120), primary_key=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("scope", String(20), nullable=False),
    Column("conversation", String(40), nullable=False),
    Column("agent", String(40), nullable=False, default=""),
    Column("person", String(200), nullable=False, default=""),
    Column("record", String(40)),
    Column("workspace", String(40)),
    Column("provider", String(40), nullable=False),
    Column("persistent", Boolean, nullable=False),
    Column("status", String(20), nullable=False),
    Column("sandbox", String(200)),
    Column("paused", Boolean, nullable=False),
    Column("lock_version", Integer, nullable=False),
    Column("boot", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("active_since", UtcDateTime),
    Column("made_at", UtcDateTime),
    Column("used_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    Column("idle_timeout", Float, nullable=False),
    Column("max_lifetime", Float, nullable=False),
    Column("snapshot", String(300)),
    Column("snapshot_at", UtcDateTime),
    Index("ix_sandboxes_sandbox", "sandbox", "provider"),
)
"""Reservations: a row is inserted before its sandbox is created, and changed by compare-and-set only."""

sandbox_leases = Table(
    "sandbox_leases",
    metadata,
    Column("label", String(120), primary_key=True),
    Column("holder", String(80)),
    Column("fence", Integer, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False, index=True),
)
"""Which replica holds the lock on a sandbox; no holder: it is free."""

usage = Table(
    "usage",
    metadata,
    Column("id", String(60), primary_key=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("agent", String(40), nullable=False),
    Column("conversation", String(40), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("what", String(200), nullable=False),
    Column("reason", String(40), nullable=False),
    Column("seconds", Float, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("micros", BigInteger, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime, nullable=False),
    Column("reserved", JSON(none_as_null=True)),
    Column("reserved_until", UtcDateTime),
    Index("ix_usage_account", "account", "ended_at"),
    Index("ix_usage_ended_at", "ended_at"),
    Index("ix_usage_conversation", "conversation"),
    partial_index("ix_usage_reserved_until", "reserved_until", where="reserved_until is not null"),
)
"""An activity span of a sandbox (`kind` sandbox), or a turn's use of a model (`kind` model).

`micros` are millionths of the currency of the configured prices. `reserved` is what the turn's running model
request has reserved in `budget_counters`; a reservation of a process that died is given back after
`reserved_until`.
"""

usage_totals = Table(
    "usage_totals",
    metadata,
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("agent", String(40), primary_key=True),
    Column("seconds", Float, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("micros", BigInteger, nullable=False),
    Column("deleted_name", String(200), nullable=True),
)
"""The sums of `usage`, updated with each row, so that checking a budget needs no aggregation.

`deleted_name` is the name that a deleted agent had.
"""

budgets = Table(
    "budgets",
    metadata,
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("limits", JSON, nullable=False),
)
"""Budgets of accounts, in total and per day and month, and what each person of an account may use."""

budget_counters = Table(
    "budget_counters",
    metadata,
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("owner", String(600), primary_key=True),
    Column("period", String(20), primary_key=True),
    Column("kind", String(20), primary_key=True),
    Column("used", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    Column("ceiling", BigInteger, nullable=False),
    Column("warned", Boolean, nullable=False),
    Column("ends_at", UtcDateTime, nullable=False, index=True),
)
"""What was used of a budget in a day or month, and what running model requests have reserved of it.

`owner` is an agent's id, a person's subject, or empty for the account. There is a row only where a limit is
set. `warned`: people were warned that most of it is used.
"""
job_progress = Table(
    "job_progress",
    metadata,
    Column("job", String(40), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("account", String(40), nullable=False),
    Column("event", String(40), nullable=False),
    Column("reports", Integer, nullable=False),
)
"""How often the progress of a running job was reported; chats show the message of the first `event`."""

job_calls = Table(
    "job_calls",
    metadata,
    Column("job", String(40), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("account", String(40), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("tool", String(64), nullable=False),
    Column("server", String(40)),
    Column("args", JSON, nullable=False),
    Column("repeatable", Boolean, nullable=False),
    Column("attempt", Integer, nullable=False),
)
"""The tool calls that are background jobs. `server` is the MCP server of the tool. `attempt` counts the
beginnings of the call: it is committed before the request is sent."""
