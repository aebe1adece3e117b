"""SQL that adds up what an account stores in the database, in bytes: texts, results and files of agents.

Every table of the schema is in one of two lists: those that are counted, and those that are not, with the
reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import JSON, Column, ColumnElement, LargeBinary, Table, Text, cast, func, select

from delivery.database import tables as delivery_tables
from delivery.database.engine import Connection
from gateway.store import tables
from gateway.store.channel_tables import channel_secrets, pairings
from gateway.store.history_tables import branches, histories
from gateway.store.key_tables import ended_sign_ins, keys, mcp_prompts, mcp_sign_ins
from gateway.store.memory_tables import memories, persons
from gateway.store.room_tables import room_messages
from gateway.store.sandbox_tables import job_calls
from gateway.store.schedule_tables import schedules, triggers

ROW_BYTES = 512
"""What a row counts beside its texts."""

Owner = tuple[str, Column[Any]]
"""The column of a table without an index of accounts, and the column with an index that it refers to."""

COUNTED: Mapping[Table, Owner | None] = {
    tables.turns: None,
    tables.messages: ("conversation", tables.conversations.c.id),
    tables.inputs: ("turn", tables.turns.c.id),
    tables.steps: ("turn", tables.turns.c.id),
    tables.approvals: None,
    tables.jobs: None,
    job_calls: None,
    histories: None,
    branches: None,
    tables.conversations: None,
    tables.records: None,
    tables.bundle_files: ("record", tables.records.c.id),
    tables.replies: None,
    memories: None,
    persons: None,
    room_messages: None,
    schedules: None,
    triggers: None,
    keys: None,
    channel_secrets: ("channel", tables.records.c.id),
    pairings: ("channel", tables.records.c.id),
    mcp_prompts: ("agent", tables.records.c.id),
    mcp_sign_ins: ("agent", tables.records.c.id),
    ended_sign_ins: None,
    delivery_tables.endpoints: None,
    delivery_tables.routes: ("conversation", tables.conversations.c.id),
    delivery_tables.deliveries: None,
    delivery_tables.attempts: ("delivery", delivery_tables.deliveries.c.id),
}
"""The tables whose rows are counted with the bytes of their texts, and how an account's rows are found."""

_SHORT = "one short row, which retention deletes with what it belongs to"
_OPERATOR = "the operator's accounting, which an account cannot write"
_GATEWAY = "the gateway's own, without rows of accounts"

NOT_COUNTED: Mapping[str, str] = {
    "files": "counted with the sizes of the files, by gateway.store.conversations.files",
    "blobs": "counted as files",
    "inbox": _SHORT,
    "streams": _SHORT,
    "job_progress": _SHORT,
    "destinations": _SHORT,
    "identities": _SHORT,
    "channel_notes": _SHORT,
    "sandboxes": "the quota of sandboxes limits it",
    "outbox": "events leave it when they are published",
    "drafts": "a draft leaves it when its message ends",
    "erasures": "an entry leaves it when the conversation is deleted",
    "audit": "an account must not be able to stop it; retention deletes it",
    "usage": _OPERATOR,
    "usage_totals": _OPERATOR,
    "budgets": _OPERATOR,
    "budget_counters": _OPERATOR,
    "accounts": _OPERATOR,
    "allowances": _GATEWAY,
    "epochs": _GATEWAY,
    "installations": _GATEWAY,
    "marks": _GATEWAY,
    "sandbox_leases": _GATEWAY,
}
"""The other tables, by name, each with the reason why it is not counted."""


def _length(column: Column[Any], dialect: str) -> ColumnElement[int]:
    """Return the bytes of a value of a column in UTF-8; those of a binary one are not read."""
    if isinstance(column.type, LargeBinary):
        length = func.length(column)
    elif dialect == "sqlite":  # it has octet_length from 3.43 on
        length = func.length(cast(cast(column, Text), LargeBinary))
    else:
        length = func.octet_length(cast(column, Text))
    return func.coalesce(length, 0)


def _total(table: Table, owner: Owner | None, account: str, dialect: str) -> ColumnElement[int]:
    """Return the bytes of an account in a table."""
    texts: Sequence[Column[Any]] = [c for c in table.c if isinstance(c.type, Text | JSON | LargeBinary)]
    length = sum((_length(one, dialect) for one in texts), 0)
    query = select(func.coalesce(func.sum(length + ROW_BYTES), 0))
    if owner is None:
        return query.where(table.c.account == account).scalar_subquery()
    column, referred = owner
    joined = query.join_from(table, referred.table, referred == table.c[column])
    return joined.where(referred.table.c.account == account).scalar_subquery()


async def stored_bytes(connection: Connection, account: str) -> int:
    """Return the bytes of an account in the counted tables, by one statement."""
    dialect = connection.dialect.name
    totals = [_total(table, owner, account, dialect) for table, owner in COUNTED.items()]
    return int((await connection.execute(select(sum(totals[1:], totals[0])))).scalar_one())
