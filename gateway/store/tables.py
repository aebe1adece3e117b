"""The tables of the gateway. Only `gateway.store` contains SQL on them."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    ScalarSelect,
    String,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
    select,
)

from delivery.database.engine import metadata
from delivery.database.partial_indexes import literal_in, partial_index, quoted
from delivery.database.tables import BigKey, UtcDateTime
from gateway.store import (
    channel_tables,
    history_tables,
    key_tables,
    memory_tables,
    room_tables,
    sandbox_tables,
    schedule_tables,
)
from gateway.store.turn_state import DEAD_LETTER_PREFIX, OPEN, TurnState

ACCOUNT = "accounts.id"
_TOOL_NAME = String(60).with_variant(String(64), "postgresql")  # SQLite does not limit texts
ELSEWHERE = (
    channel_tables,
    history_tables,
    key_tables,
    memory_tables,
    room_tables,
    sandbox_tables,
    schedule_tables,
)
"""Modules of further tables; they are loaded with this one, for the migrations."""


def _account() -> Column[str]:
    return Column("account", String(40), ForeignKey(ACCOUNT, ondelete="CASCADE"), nullable=False, index=True)


def _copied_account() -> Column[str]:
    """Return a column with the account of the row's owner, for work on all rows of an account."""
    return Column("account", String(40), nullable=False)


accounts = Table(
    "accounts",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("storage_bytes", BigInteger),
    Column("timezone", String(64)),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("created_at", UtcDateTime, nullable=False),
)
"""`storage_bytes` replaces `files.account_bytes` (0: no limit), and `timezone` the operator's time zone.

`revision`: see `gateway.store.accounts.revisions`.
"""

records = Table(
    "records",
    metadata,
    Column("id", String(40), primary_key=True),
    _account(),
    Column("kind", String(20), nullable=False),
    Column("name", String(200), nullable=False),
    Column("config", JSON, nullable=False),
    Column("secrets", JSON, nullable=False),
    Column("managed", Boolean, nullable=False, default=False),
    Column("applied", JSON),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    UniqueConstraint("account", "kind", "name"),
    Index("ix_records_kind", "kind", "id"),
)
"""Agents, workspaces, sandboxes and channels: named JSON with the secret parts sealed apart.

`managed` records come from the operator's configuration file and are rewritten at start. `applied`: the
settings that the last start applied to a record that is not; NULL: none.
"""


def account_of_record(record: str) -> ScalarSelect[str]:
    """Return the subquery of a record's account, for the rows that belong to the record."""
    return select(records.c.account).where(records.c.id == record).scalar_subquery()


conversations = Table(
    "conversations",
    metadata,
    Column("id", String(40), primary_key=True),
    _account(),
    Column("agent", String(40), nullable=False),
    Column("name", String(300)),
    Column("title", String(200)),
    Column("channel", String(40)),
    Column("address_key", String(600)),
    Column("address", Text),
    Column("queue_mode", String(20)),
    Column("queue_limit", Integer),
    Column("model", String(200)),
    Column("direct", Boolean),
    Column("fence", Integer, nullable=False, default=0),
    Column("room_position", BigInteger),
    Column("handover_by", String(200)),
    Column("handover_at", UtcDateTime),
    Column("carried_context", JSON(none_as_null=True)),
    Column("client_state", JSON(none_as_null=True)),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("account", "name"),
    UniqueConstraint("account", "address_key"),
    partial_index("ix_conversations_unnamed", "created_at", where="name IS NULL AND channel IS NULL"),
)
"""`address_key` belongs to the open conversation of a chat thread; `/new` frees it for the next one.
`room_position` is the last row of `room_messages` that a turn got as context. While `handover_by` is set, a
person handles the conversation and its turns are cancelled; `carried_context` is what its next turn gets.
`direct`: the chat has one person beside the bot; null if unknown. `model` was selected by `/model`.
"""

inbox = Table(
    "inbox",
    metadata,
    Column("account", String(40), primary_key=True),
    Column("source", String(40), primary_key=True),
    Column("event_key", String(300), primary_key=True),
    Column("message", String(40)),
    Column("turn", String(40)),
    Column("created_at", UtcDateTime, nullable=False, index=True),
)

messages = Table(
    "messages",
    metadata,
    Column("position", BigKey, primary_key=True, autoincrement=True),
    Column("id", String(40), nullable=False, unique=True),
    Column("conversation", String(40), ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    _copied_account(),
    Column("turn", String(40)),
    Column("role", String(20), nullable=False),
    Column("author", String(200), nullable=False, default=""),
    Column("text", Text, nullable=False),
    Column("attachments", JSON, nullable=False),
    Column("platform_id", String(200)),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_messages_conversation", "conversation", "position"),
    Index("ix_messages_turn", "turn"),
    Index("ix_messages_platform_id", "platform_id", "conversation"),
)
"""`platform_id` is the chat platform's id of a message."""

DEAD_TURN = (
    f"state = '{TurnState.FAILED}' AND retried_as IS NULL "
    f"AND substr(error, 1, {len(DEAD_LETTER_PREFIX)}) = '{DEAD_LETTER_PREFIX}'"
)
"""The condition for a turn that was given up and not retried."""

turns = Table(
    "turns",
    metadata,
    Column("position", BigKey, primary_key=True, autoincrement=True),
    Column("id", String(40), nullable=False, unique=True),
    _account(),
    Column("conversation", String(40), ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("agent", String(40), nullable=False),
    Column("trigger", String(20), nullable=False),
    Column("message", String(40)),
    Column("job", String(40), unique=True),
    Column("asker", String(200), nullable=False, default=""),
    Column("input", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("attempt", Integer, nullable=False, default=0),
    Column("crashes", Integer, nullable=False, default=0),
    Column("runner", String(80)),
    Column("cancel", Boolean, nullable=False, default=False),
    Column("cancel_why", String(40)),
    Column("origin", JSON(none_as_null=True)),
    Column("context", JSON(none_as_null=True)),
    Column("request", JSON(none_as_null=True)),
    Column("mode", String(20)),
    Column("merged_into", String(40)),
    Column("model", String(200)),
    Column("retried_as", String(40)),
    Column("notify", Boolean, nullable=False, default=False),
    Column("output", Text),
    Column("error", Text),
    Column("paused", LargeBinary),
    Column("usage", JSON),
    Column("created_at", UtcDateTime, nullable=False),
    Column("next_at", UtcDateTime),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    Index("ix_turns_queue", "conversation", "state", "position"),
    partial_index("ix_turns_open", "conversation", "position", where=f"state IN ({quoted(OPEN)})"),
    partial_index("ix_turns_dead", "conversation", where=DEAD_TURN),
)

IS_OPEN = literal_in(turns.c.state, OPEN)
"""Whether a turn has not ended."""

inputs = Table(
    "inputs",
    metadata,
    Column("turn", String(40), ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("place", Integer, primary_key=True),
    _copied_account(),
    Column("source", String(40), nullable=False, unique=True),
    Column("text", Text, nullable=False),
)
"""Messages that a running turn received (queue mode steer), in order; `source` is their original turn."""

steps = Table(
    "steps",
    metadata,
    Column("turn", String(40), ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("step_key", String(120), primary_key=True),
    _copied_account(),
    Column("position", Integer, nullable=False),
    Column("tool", _TOOL_NAME, nullable=False),
    Column("args", JSON, nullable=False),
    Column("state", String(20), nullable=False),
    Column("result", JSON),
    Column("started_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
)
"""A tool call's checkpoint: `running` before it happens, `done` with its result after."""

approvals = Table(
    "approvals",
    metadata,
    Column("id", String(40), primary_key=True),
    _account(),
    Column("conversation", String(40), ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("turn", String(40), nullable=False, index=True),
    Column("call", String(120), nullable=False),
    Column("tool", _TOOL_NAME, nullable=False),
    Column("args", JSON, nullable=False),
    Column("command", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("state", String(20), nullable=False),
    Column("decided_by", String(200)),
    Column("decided_name", String(200)),
    Column("comment", Text),
    Column("files", JSON),
    Column("usage", JSON),
    Column("created_at", UtcDateTime, nullable=False),
    Column("decided_at", UtcDateTime),
    Index("ix_approvals_conversation", "conversation"),
    partial_index("ix_approvals_pending", "created_at", where="state = 'pending'"),
)

IS_PENDING = approvals.c.state == literal_column("'pending'")
"""Whether an approval has not been decided. A call can have several: all but the last are `void` then."""

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(40), primary_key=True),
    _account(),
    Column("conversation", String(40), ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("turn", String(40), nullable=False),
    Column("agent", String(40), nullable=False),
    Column("asker", String(200), nullable=False, default=""),
    Column("command", Text, nullable=False),
    Column("provider", String(40), nullable=False),
    Column("sandbox", String(200), nullable=False),
    Column("sandbox_record", String(40)),
    Column("workspace", String(40)),
    Column("replica", String(80)),
    Column("state", String(20), nullable=False),
    Column("reason", String(80)),
    Column("token_digest", LargeBinary, nullable=False),
    Column("token_sealed", LargeBinary, nullable=False),
    Column("spawned_at", UtcDateTime),
    Column("stop_requested_at", UtcDateTime),
    Column("exit_code", Integer),
    Column("output", Text, nullable=False, default=""),
    Column("truncated", Boolean, nullable=False, default=False),
    Column("unreachable_since", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Index("ix_jobs_state", "state", "sandbox"),
    Index("ix_jobs_conversation", "conversation"),
)

replies = Table(
    "replies",
    metadata,
    Column("account", String(40), primary_key=True),
    Column("idempotency_key", String(200), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("status", Integer),
    Column("body", LargeBinary),
    Column("holder", String(80)),
    Column("created_at", UtcDateTime, nullable=False, index=True),
)
"""Responses to POSTs with an Idempotency-Key, for 30 days; `holder` is the process that executes it."""
marks = Table(
    "marks",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("sealed", Text, nullable=False),
)
"""Check values that show at the start whether the gateway has the keys the database is encrypted with."""
erasures = Table(
    "erasures",
    metadata,
    Column("conversation", String(40), primary_key=True),
    _copied_account(),
    Column("created_at", UtcDateTime, nullable=False),
)
"""Deleted conversations whose events may still be in the stream."""

audit = Table(
    "audit",
    metadata,
    Column("position", BigKey, primary_key=True, autoincrement=True),
    Column("id", String(40), nullable=False, unique=True),
    Column("account", String(40), index=True),
    Column("actor", String(80), nullable=False),
    Column("action", String(200), nullable=False),
    Column("object", String(300), nullable=False, default=""),
    Column("status", Integer, nullable=False),
    Column("address", String(80), nullable=False, default=""),
    Column("created_at", UtcDateTime, nullable=False, index=True),
)
"""Audit log: one row for each request that changes records, keys or deliveries, refused ones included."""

files = Table(
    "files",
    metadata,
    Column("id", String(40), primary_key=True),
    _account(),
    Column("conversation", String(40), ForeignKey("conversations.id", ondelete="CASCADE")),
    Column("turn", String(40), index=True),
    Column("job", String(40)),
    Column("state", String(20), nullable=False),
    Column("identity", String(64), nullable=False),
    Column("version", String(80), nullable=False, default=""),
    Column("path", Text, nullable=False, default=""),
    Column("name", String(255), nullable=False),
    Column("type", String(120), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", String(64), index=True),
    Column("caption", Text, nullable=False, default=""),
    Column("note", Text),
    Column("noted_turn", String(40)),
    Column("created_at", UtcDateTime, nullable=False, index=True),
    Column("expires_at", UtcDateTime),
    Column("purpose", String(64)),
    UniqueConstraint("conversation", "identity"),
    partial_index("ix_files_job", "job", where="job IS NOT NULL"),
    partial_index("ix_files_expires", "expires_at", where="expires_at IS NOT NULL"),
)
"""Files to and from people; `identity` is the same when a file is found again.

`expires_at` is when an upload is deleted, if its client gave a time; the others end with the retention.
`purpose` is what the client of `/v1/files` said that an upload is for.
`note` is a message about the file for the model, and `noted_turn` the turn that received it.
"""

blobs = Table(
    "blobs",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("dropping", Boolean, nullable=False, default=False),
    Column("touched_at", UtcDateTime, nullable=False, index=True),
    partial_index("ix_blobs_dropping", "sha256", where="dropping"),
)
"""Stored bytes, once per digest, however many files have them."""

bundle_files = Table(
    "bundle_files",
    metadata,
    Column("record", String(40), ForeignKey("records.id", ondelete="CASCADE"), primary_key=True),
    Column("path", String(500), primary_key=True),
    _copied_account(),
    Column("content", LargeBinary, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("size", Integer, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)
"""Files of skills and agents that are installed into workspaces."""
