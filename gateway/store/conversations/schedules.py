"""SQL of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, Update, delete, func, literal_column, select, update

from delivery.database.engine import Connection
from gateway.store.schedule_tables import schedules as table
from gateway.store.tables import conversations

AGENT_DELETED_NOTE = "the agent of its conversation was deleted"
CHANNEL_DELETED_NOTE = "the channel of its conversation was deleted"


class ScheduleKind(StrEnum):
    """What a schedule starts: a turn of the agent, or a message with its text."""

    TURN = "turn"
    REMINDER = "reminder"


class MissedRule(StrEnum):
    """What happens to times at which no gateway ran: none is made up for, the last one, or each."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class ScheduleState(StrEnum):
    """Whether a schedule is due again: `ended` has no further time."""

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule; exactly one of `at`, `every_seconds` and `cron` is set. `next_at`: None unless active.

    The turns of a `heartbeat` may end without a message.
    """

    id: str
    account: str
    conversation: str
    kind: ScheduleKind
    text: str
    at: datetime | None
    every_seconds: int | None
    cron: str | None
    timezone: str
    missed: MissedRule
    state: ScheduleState
    next_at: datetime | None
    last_at: datetime | None = None
    last_turn: str | None = None
    fired: int = 0
    note: str = ""
    heartbeat: bool = False
    created_by: str
    created_at: datetime


_NEXT_DUE = select(table.c.next_at).where(table.c.next_at.is_not(None)).order_by(table.c.next_at).limit(1)


async def insert_schedule(connection: Connection, schedule: Schedule) -> None:
    """Insert a schedule; raises IntegrityError if its id exists."""
    await connection.execute(table.insert().values(**asdict(schedule)))


async def get(
    connection: Connection, account: str, schedule: str, *, locked: bool = False
) -> Schedule | None:
    """Return a schedule of an account, `locked` to change it."""
    query = select(table).where(table.c.account == account, table.c.id == schedule)
    row = (await connection.execute(query.with_for_update() if locked else query)).first()
    return None if row is None else _schedule(row)


async def list_for_account(
    connection: Connection, account: str, *, conversation: str | None = None, after: str = "", limit: int
) -> Sequence[Schedule]:
    """Return schedules by id, which is the order of their creation, after the id `after`."""
    query = select(table).where(table.c.account == account, table.c.id > after)
    if conversation is not None:
        query = query.where(table.c.conversation == conversation)
    return [_schedule(row) for row in await connection.execute(query.order_by(table.c.id).limit(limit))]


async def list_unfinished(
    connection: Connection, account: str, conversation: str, *, limit: int
) -> Sequence[Schedule]:
    """Return the schedules of a conversation that are active or paused, in the order of their creation."""
    query = (
        select(table)
        .where(
            table.c.account == account,
            table.c.conversation == conversation,
            table.c.state != ScheduleState.ENDED,
        )
        .order_by(table.c.id)
        .limit(limit)
    )
    return [_schedule(row) for row in await connection.execute(query)]


async def list_by_author(connection: Connection, account: str, prefix: str) -> Sequence[Schedule]:
    """Return the schedules of an account whose author begins with a text."""
    query = select(table).where(
        table.c.account == account, table.c.created_by.startswith(prefix, autoescape=True)
    )
    return [_schedule(row) for row in await connection.execute(query.order_by(table.c.id))]


async def count_unfinished(connection: Connection, account: str) -> int:
    """Return how many schedules of an account are active or paused."""
    found = await connection.execute(
        select(func.count())
        .select_from(table)
        .where(table.c.account == account, table.c.state != ScheduleState.ENDED)
    )
    return found.scalar_one()


async def list_due(
    connection: Connection, *, now: datetime, full: Sequence[str] = (), limit: int
) -> Sequence[Schedule]:
    """Return schedules that are due, except in the conversations `full`; the accounts take turns."""
    account = table.c.account.concat("")  # SQLite would read all schedules in the order of an index of it
    due = (
        select(
            *table.c,
            func.row_number().over(partition_by=account, order_by=table.c.next_at).label("place"),
        )
        .where(table.c.next_at <= now, table.c.conversation.not_in(full))
        .subquery()
    )
    found = await connection.execute(select(due).order_by(due.c.place, due.c.next_at).limit(limit))
    return [_schedule(row) for row in found]


async def list_later(connection: Connection, *, now: datetime, after: str, limit: int) -> Sequence[Schedule]:
    """Return recurring schedules that are due later than now, in the order of their ids, after an id."""
    later = (table.c.next_at > now) & table.c.at.is_(None) & (table.c.id > after)
    found = await connection.execute(select(table).where(later).order_by(table.c.id).limit(limit))
    return [_schedule(row) for row in found]


async def next_due(connection: Connection) -> datetime | None:
    """Return when the next schedule of any account is due."""
    due: datetime | None = (await connection.execute(_NEXT_DUE)).scalar_one_or_none()
    return due


async def update_schedule(connection: Connection, before: Schedule, after: Schedule) -> bool:
    """Replace a schedule if it has neither fired nor changed state since `before`; returns whether it did."""
    changed = await connection.execute(
        update(table)
        .where(
            table.c.id == before.id,
            table.c.account == before.account,
            table.c.fired == before.fired,
            table.c.state == before.state,
            table.c.next_at.is_(None) if before.next_at is None else table.c.next_at == before.next_at,
        )
        .values(**asdict(after))
    )
    return changed.rowcount > 0


async def end_for_agent(connection: Connection, account: str, agent: str) -> None:
    """End the schedules of turns in conversations of an agent that is deleted; reminders need no agent."""
    is_owned = conversations.c.agent == agent
    await connection.execute(
        _end(account, is_owned, AGENT_DELETED_NOTE).where(table.c.kind == ScheduleKind.TURN)
    )


async def end_for_channel(connection: Connection, account: str, channel: str) -> None:
    """End the schedules in the chats of a channel that is deleted: nobody there would see what they start."""
    await connection.execute(_end(account, conversations.c.channel == channel, CHANNEL_DELETED_NOTE))


def _end(account: str, concerned: ColumnElement[bool], note: str) -> Update:
    """Return the statement that ends the schedules of an account in the conversations that are concerned."""
    ids = select(conversations.c.id).where(conversations.c.account == account, concerned)
    return (
        update(table)
        .where(table.c.conversation.in_(ids), table.c.state != ScheduleState.ENDED)
        .values(state=ScheduleState.ENDED, next_at=None, note=note)
    )


async def set_last_turn(connection: Connection, schedule: str, turn: str) -> None:
    """Record the newest turn of a schedule."""
    await connection.execute(update(table).where(table.c.id == schedule).values(last_turn=turn))


async def delete_schedule(connection: Connection, account: str, schedule: str) -> bool:
    """Delete a schedule; returns False if there is none."""
    done = await connection.execute(delete(table).where(table.c.account == account, table.c.id == schedule))
    return done.rowcount > 0


async def delete_ended_before(connection: Connection, *, before: datetime) -> None:
    """Delete schedules that ended and were last due before a moment; a skipped time counts as well."""
    last_due = func.coalesce(table.c.last_at, table.c.at, table.c.created_at)
    await connection.execute(
        delete(table).where(table.c.state == literal_column("'ended'"), last_due < before)
    )


def _schedule(row: Row[Any]) -> Schedule:
    return Schedule(
        id=row.id,
        account=row.account,
        conversation=row.conversation,
        kind=ScheduleKind(row.kind),
        text=row.text,
        at=row.at,
        every_seconds=row.every_seconds,
        cron=row.cron,
        timezone=row.timezone,
        missed=MissedRule(row.missed),
        state=ScheduleState(row.state),
        next_at=row.next_at,
        last_at=row.last_at,
        last_turn=row.last_turn,
        fired=row.fired,
        note=row.note,
        heartbeat=row.heartbeat,
        created_by=row.created_by,
        created_at=row.created_at,
    )
