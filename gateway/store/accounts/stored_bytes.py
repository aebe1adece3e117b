"""SQL that adds up what an account stores in the database: texts, results and files of agents and skills."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, Text, cast, func, select

from delivery.database.engine import Connection
from gateway.store.history_tables import histories
from gateway.store.memory_tables import memories
from gateway.store.sandbox_tables import job_calls
from gateway.store.tables import bundle_files, conversations, jobs, messages, records, turns

ROW_BYTES = 512
"""What a message, a job, a turn or its history counts beside its texts."""


def _total(*texts: ColumnElement[Any]) -> ColumnElement[Any]:
    length = sum((func.coalesce(func.length(text), 0) for text in texts[1:]), func.length(texts[0]))
    return func.coalesce(func.sum(length + ROW_BYTES), 0)


def _queries(account: str) -> list[Select[Any]]:
    return [
        select(_total(messages.c.text))
        .join(conversations, conversations.c.id == messages.c.conversation)
        .where(conversations.c.account == account),
        select(_total(turns.c.input, turns.c.output)).where(turns.c.account == account),
        select(_total(jobs.c.command, jobs.c.output)).where(jobs.c.account == account),
        select(_total(cast(job_calls.c.args, Text))).where(job_calls.c.account == account),
        select(_total(histories.c.body)).where(histories.c.account == account),
        select(_total(memories.c.text, memories.c.words)).where(memories.c.account == account),
        select(func.coalesce(func.sum(bundle_files.c.size), 0))
        .join(records, records.c.id == bundle_files.c.record)
        .where(records.c.account == account),
    ]


async def stored_bytes(connection: Connection, account: str) -> int:
    """Return the size of an account's messages, turns, jobs, histories, memories and agents' files."""
    return sum([int((await connection.execute(query)).scalar_one()) for query in _queries(account)])
