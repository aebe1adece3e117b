"""SQL that deletes old turns with all that belongs to them, old messages, and conversations without both.

Each step is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Select, delete, exists, select

from delivery.database.engine import Connection
from delivery.deliveries import queries, routes
from delivery.deliveries.queries import BATCH_ROWS
from gateway.store.accounts import audit_log, deletion
from gateway.store.job_state import JobState
from gateway.store.schedule_tables import schedules, triggers
from gateway.store.tables import approvals, conversations, jobs, messages, turns
from gateway.store.turn_state import OPEN

CONVERSATIONS = 20
"""Conversations that one step deletes."""

_SEEN = [
    turns.c[name] for name in ("position", "id", "conversation", "job", "state", "created_at", "finished_at")
]


async def delete_turns(connection: Connection, *, after: int, before: datetime) -> int | None:
    """Delete old turns among the next rows after a position; return the last position, or None at the end.

    With a turn go its tool calls, its approvals, the messages that steered it, its own routes, and the job
    whose result it answered. A turn stays while it is open, has a running job, or is not delivered.
    """
    rows = await connection.execute(
        select(*_SEEN).where(turns.c.position > after).order_by(turns.c.position).limit(BATCH_ROWS)
    )
    page = rows.all()
    seen = [row for row in page if row.created_at < before]
    ended = [
        row
        for row in seen
        if row.state not in OPEN and row.finished_at is not None and row.finished_at < before
    ]
    needed = await _list_needed(connection, [row.id for row in ended], [row.conversation for row in ended])
    old = {row.id: row.job for row in ended if row.id not in needed}
    await _delete(connection, list(old), [job for job in old.values() if job is not None])
    return page[-1].position if seen and len(page) == BATCH_ROWS else None


async def _list_needed(
    connection: Connection, candidates: Sequence[str], of_conversations: Sequence[str]
) -> frozenset[str]:
    running = await connection.execute(
        select(jobs.c.turn).where(jobs.c.state == str(JobState.RUNNING), jobs.c.turn.in_(candidates))
    )
    undelivered = await queries.list_undelivered(connection, candidates, of_conversations)
    return frozenset(running.scalars()) | undelivered


async def _delete(connection: Connection, old: Sequence[str], their_jobs: Sequence[str]) -> None:
    await connection.execute(delete(approvals).where(approvals.c.turn.in_(old)))
    await connection.execute(
        delete(jobs).where(jobs.c.id.in_(their_jobs), jobs.c.state != str(JobState.RUNNING))
    )
    await routes.delete_turn_routes(connection, old)
    await connection.execute(delete(turns).where(turns.c.id.in_(old)))


async def delete_messages(connection: Connection, *, after: int, before: datetime) -> int | None:
    """Delete old messages among the next rows after a position; return the last position, or None.

    A message stays while a turn that it belongs to is open. Agents read their own history, not these rows.
    """
    rows = await connection.execute(
        select(messages.c.position, messages.c.id, messages.c.created_at, turns.c.state)
        .outerjoin(turns, turns.c.id == messages.c.turn)
        .where(messages.c.position > after)
        .order_by(messages.c.position)
        .limit(BATCH_ROWS)
    )
    page = rows.all()
    seen = [row for row in page if row.created_at < before]
    old = [row.id for row in seen if row.state not in OPEN]
    await connection.execute(delete(messages).where(messages.c.id.in_(old)))
    return page[-1].position if seen and len(page) == BATCH_ROWS else None


async def delete_conversations(connection: Connection, *, before: datetime) -> int:
    """Delete some conversations that nobody can find again, and return how many.

    They have neither a name nor a chat, and all of their turns and messages are deleted; clients that keep
    their own history begin one with each request. What the agent remembers of them is deleted too.
    """
    found = (await connection.execute(_unused(before).limit(CONVERSATIONS))).all()
    ids = [row.id for row in found]
    # Messages that come now wait, and do not find their conversation; the second query sees earlier ones.
    await connection.execute(select(conversations.c.id).where(conversations.c.id.in_(ids)).with_for_update())
    unused = (await connection.execute(_unused(before).where(conversations.c.id.in_(ids)))).all()
    for row in unused:
        await deletion.delete_conversation(connection, row.account, row.id)
        await audit_log.schedule_purge(connection, row.account, row.id)
    return len(unused)


def _unused(before: datetime) -> Select[tuple[str, str]]:
    """Select account and id of conversations that are older and that nothing refers to, the oldest first."""
    used = [
        exists().where(table.c.conversation == conversations.c.id)
        for table in (messages, turns, jobs, schedules, triggers)
    ]
    return (
        select(conversations.c.account, conversations.c.id)
        .where(
            conversations.c.name.is_(None),
            conversations.c.channel.is_(None),
            conversations.c.client_state.is_(None),
            conversations.c.created_at < before,
            *(~one for one in used),
        )
        .order_by(conversations.c.created_at)
    )
