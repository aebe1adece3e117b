"""The tables of delivery; only the store modules of this package run SQL on them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from delivery.database.engine import metadata
from delivery.database.partial_indexes import literal_in, partial_index, quoted


def _to_sqlite(value: datetime | None) -> str | None:
    """Return a moment in UTC as SQLAlchemy stores it in SQLite."""
    return (
        None if value is None else value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    )


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime, on SQLite too (which forgets zones)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:  # noqa: ARG002
        """Convert a moment to UTC before it is stored."""
        return value if value is None else value.astimezone(UTC)

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], object] | None:
        """Return the conversion of a value for the driver; for SQLite it takes one step in place of three."""
        return _to_sqlite if dialect.name == "sqlite" else super().bind_processor(dialect)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:  # noqa: ARG002
        """Return a stored moment with its zone, UTC."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


BigKey = BigInteger().with_variant(Integer, "sqlite")

streams = Table(
    "streams",
    metadata,
    Column("conversation", String(40), primary_key=True),
    Column("account", String(40), nullable=False, index=True),
    Column("agent", String(40), nullable=False),
    Column("last_n", Integer, nullable=False, default=0),
    Column("relayed_n", Integer, nullable=False, default=0),
    Column("last_seq", BigInteger, nullable=False, default=0),
    Column("active_at", UtcDateTime, nullable=False, server_default="1970-01-01 00:00:00.000000"),
    Index("ix_streams_activity", "account", "active_at", "conversation"),
    partial_index("ix_streams_behind", "conversation", where="relayed_n < last_n"),
)

IS_BEHIND = streams.c.relayed_n < streams.c.last_n
"""Whether a conversation has events that may not be published yet."""

outbox = Table(
    "outbox",
    metadata,
    Column("event_id", String(80), primary_key=True),
    Column(
        "conversation", String(40), ForeignKey("streams.conversation", ondelete="CASCADE"), nullable=False
    ),
    Column("account", String(40), nullable=False),
    Column("n", Integer, nullable=False),
    Column("type", String(40), nullable=False),
    Column("turn", String(40)),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("conversation", "n"),
    Index("ix_outbox_created_at", "created_at"),
    Index("ix_outbox_turn", "turn"),
)

epochs = Table(
    "epochs",
    metadata,
    Column("stream", String(40), primary_key=True),
    Column("created", String(40), nullable=False),
    Column("high_water", BigInteger, nullable=False, default=0),
    Column("bumps", Integer, nullable=False, default=0),
)

endpoints = Table(
    "endpoints",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account", String(40), nullable=False, index=True),
    Column("name", String(200)),
    Column("origin", String(80), nullable=False),
    Column("url", Text, nullable=False),
    Column("trusted", Boolean, nullable=False, default=False),
    Column("events", Text, nullable=False),
    Column("conversation", String(40)),
    Column("secret", LargeBinary, nullable=False),
    Column("previous_secret", LargeBinary),
    Column("previous_until", UtcDateTime),
    Column("disabled_at", UtcDateTime),
    Column("disabled_why", Text),
    Column("ordered", Boolean, nullable=False, default=False, server_default="0"),
    Column("failing_since", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("account", "name"),
)

routes = Table(
    "routes",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account", String(40), nullable=False),
    Column("conversation", String(40), nullable=False, index=True),
    Column("turn", String(40)),
    Column("kind", String(20), nullable=False),
    Column("target", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("conversation", "turn", "kind", "target"),
    partial_index("ix_routes_turn", "turn", where="turn IS NOT NULL"),
)

OPEN_DELIVERIES = ("pending", "sending", "retrying", "parked")
"""The states of unfinished deliveries."""

FAILED_DELIVERIES = ("ambiguous", "dead")
"""The states of deliveries that have ended and need attention."""

# `armed_at` and `armed_from`: when, and after how many attempts, the retry schedule last began.
# `ordering_key`: deliveries of a destination with the same key are sent in order.
SENT_MESSAGES = "event_type = 'message.completed' AND platform_id IS NOT NULL"
"""Deliveries that are messages of agents which a platform knows."""

deliveries = Table(
    "deliveries",
    metadata,
    Column("position", BigKey, primary_key=True, autoincrement=True),
    Column("id", String(40), nullable=False, unique=True),
    Column("account", String(40), nullable=False, index=True),
    Column("event_id", String(80), nullable=False, index=True),
    Column("event_type", String(40), nullable=False),
    Column("event_time", UtcDateTime, nullable=False),
    Column("conversation", String(40), index=True),
    Column("turn", String(40), index=True),
    Column("kind", String(20), nullable=False),
    Column("target", Text, nullable=False),
    Column("destination", String(300), nullable=False),
    Column("ordering_key", String(320), nullable=False, default="", server_default=""),
    Column("part", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("state", String(20), nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("armed_at", UtcDateTime, nullable=False),
    Column("armed_from", Integer, nullable=False, default=0),
    Column("uncertain", Boolean, nullable=False, default=False),
    Column("next_at", UtcDateTime),
    Column("platform_id", String(200)),
    Column("error", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    UniqueConstraint("event_id", "kind", "target", "part"),
    partial_index(
        "ix_deliveries_open", "destination", "position", where=f"state IN ({quoted(OPEN_DELIVERIES)})"
    ),
    partial_index("ix_deliveries_failed", "state", where=f"state IN ({quoted(FAILED_DELIVERIES)})"),
    partial_index(
        "ix_deliveries_approvals", "destination", "platform_id", where="event_type = 'approval.requested'"
    ),
    partial_index("ix_deliveries_messages", "destination", "platform_id", where=SENT_MESSAGES),
)

IS_OPEN = literal_in(deliveries.c.state, OPEN_DELIVERIES)
"""Whether a delivery is unfinished."""

IS_FAILED = literal_in(deliveries.c.state, FAILED_DELIVERIES)
"""Whether a delivery has ended and needs attention."""

destinations = Table(
    "destinations",
    metadata,
    Column("destination", String(300), primary_key=True),
    Column("account", String(40), nullable=False),
    Column("held_until", UtcDateTime),
    Column("dead_at", UtcDateTime),
    Column("dead_why", Text),
    partial_index("ix_destinations_dead", "destination", where="dead_at IS NOT NULL"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    Column(
        "delivery", String(40), ForeignKey("deliveries.id", ondelete="CASCADE"), nullable=False, index=True
    ),
    Column("account", String(40), nullable=False),
    Column("number", Integer, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("duration_ms", Float),
    Column("outcome", String(20)),
    Column("status", Integer),
    Column("detail", Text),
    Column("excerpt", Text),
)

drafts = Table(
    "drafts",
    metadata,
    Column("message", String(80), primary_key=True),
    Column("target", Text, primary_key=True),
    Column("account", String(40), nullable=False),
    Column("platform_id", String(200)),
    Column("busy_until", UtcDateTime),
    Column("claimed_at", UtcDateTime),
    Column("turn", String(80), index=True),
    Column("shown", Text),
    Column("ended_by", String(40)),
    Column("created_at", UtcDateTime, nullable=False, index=True),
)

# The rate limits that replicas share; `seen` and `strict_until` are seconds of the database's clock.
allowances = Table(
    "allowances",
    metadata,
    Column("name", String(300), primary_key=True),
    Column("level", Float, nullable=False),
    Column("seen", Float, nullable=False),
    Column("strict_until", Float, nullable=False),
)
