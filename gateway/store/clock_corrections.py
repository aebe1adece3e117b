"""SQL that corrects times which a fast clock has written, after it was set back.

Such a time lies further ahead than it can: what waits for it would wait for as long as the clock was ahead.
`CORRECTIONS` lists the columns for which something waits and that an index finds. Other modules bound the
rest where they read it: a pause of a destination, a draft's write, codes, and the claim of a renewal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Column, ColumnElement, Update, literal_column, or_, true, update

from delivery.database.engine import Connection
from delivery.database.tables import IS_OPEN as IS_OPEN_DELIVERY
from delivery.database.tables import deliveries
from gateway.store.job_state import JobState
from gateway.store.sandbox_tables import sandboxes, usage
from gateway.store.tables import IS_OPEN as IS_OPEN_TURN
from gateway.store.tables import IS_PENDING, approvals, jobs, turns
from gateway.store.turn_state import LONGEST_RETRY_DELAY

TOLERANCE = timedelta(minutes=1)
"""How far a time of the past may lie ahead: replicas notice within 30 s that their clock was set."""

LONGEST_RESERVATION = timedelta(days=1)
"""What a model request reserves is given back after this time, however long the request may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A column whose value is wrong if it lies further ahead than `most` (None: than any time).

    It is wrong too if it lies ahead and was `written` at a time that does. A wrong value becomes the current
    time, or NULL with `clears`. Only rows with `where` are corrected.
    """

    column: Column[datetime]
    where: ColumnElement[bool] = field(default_factory=true)
    most: timedelta | None = TOLERANCE
    written: Column[datetime] | None = None
    clears: bool = False


_IS_RUNNING = jobs.c.state == str(JobState.RUNNING)

CORRECTIONS: Sequence[Correction] = (
    Correction(column=turns.c.next_at, where=IS_OPEN_TURN, most=timedelta(seconds=LONGEST_RETRY_DELAY)),
    # Before `updated_at` itself, which shows what clock has computed the time of the next attempt.
    Correction(
        column=deliveries.c.next_at, where=IS_OPEN_DELIVERY, most=None, written=deliveries.c.updated_at
    ),
    Correction(column=deliveries.c.updated_at, where=IS_OPEN_DELIVERY),
    Correction(column=deliveries.c.armed_at, where=IS_OPEN_DELIVERY),
    Correction(column=approvals.c.created_at, where=IS_PENDING),
    Correction(column=jobs.c.unreachable_since, where=_IS_RUNNING),
    Correction(
        column=usage.c.reserved_until,
        where=literal_column("reserved_until is not null"),
        most=LONGEST_RESERVATION,
        written=usage.c.ended_at,
    ),
    # Cleared: its order with `used_at` shows whether the snapshot has everything.
    Correction(column=sandboxes.c.snapshot_at, clears=True),
    Correction(column=sandboxes.c.used_at),
    Correction(column=sandboxes.c.changed_at),
    Correction(column=sandboxes.c.made_at),
    Correction(column=sandboxes.c.active_since),
)
"""All corrections, in the order in which they are made."""


async def correct(connection: Connection, *, now: datetime) -> int:
    """Correct the times that a fast clock has written; return how many they were."""
    count = 0
    for one in CORRECTIONS:
        changed = await connection.execute(_statement(one, now))
        count += changed.rowcount
    return count


def _statement(one: Correction, now: datetime) -> Update:
    wrong = [] if one.most is None else [one.column > now + one.most]
    if one.written is not None:
        wrong.append((one.written > now + TOLERANCE) & (one.column > now))
    return (
        update(one.column.table)
        .where(one.where, or_(*wrong))
        .values({one.column: None if one.clears else now})
    )
