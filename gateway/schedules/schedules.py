"""Schedules of an account: created, changed, paused and resumed in the caller's transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from delivery.events.event import new_id
from gateway.config.settings import Settings
from gateway.schedules.recurrence import InvalidRecurrence, Recurrence
from gateway.store.conversations import schedules as store
from gateway.store.conversations.schedules import MissedRule, Schedule, ScheduleKind, ScheduleState

MAX_TEXT = 8000
"""Characters of a schedule's text."""

DEFAULT_LIMIT = 1000
"""Active and paused schedules of an account unless the operator sets another limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """The operator's settings: how many an account may have, and the time zone unless one is given."""

    limit: int = DEFAULT_LIMIT
    timezone: str = "UTC"


def schedule_settings(settings: Settings) -> ScheduleSettings:
    """Return the operator's settings for schedules."""
    return ScheduleSettings(limit=settings.schedule_limit, timezone=settings.timezone)


class TooManySchedules(Exception):
    """The account has as many schedules as it may have."""


class ScheduleManaged(Exception):
    """The schedule is defined in the operator's settings file: change it there."""


class ScheduleEnded(Exception):
    """The schedule has no further time, so it can only be deleted or given a new time."""


FILE_AUTHOR = "dovecote.toml:"
"""`created_by` of a schedule of the settings file: this and the name of its table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """What a schedule does, when, and where. `conversation` is an id; `id` makes a repetition harmless."""

    account: str
    conversation: str
    text: str
    recurrence: Recurrence
    created_by: str
    kind: ScheduleKind = ScheduleKind.TURN
    missed: MissedRule = MissedRule.ONCE
    paused: bool = False
    heartbeat: bool = False
    id: str | None = None


def declared_id(account: str, name: str) -> str:
    """Return the id of the schedule of a table, which is the same on every replica and at every start."""
    return "sch_" + hashlib.sha256(f"{account} {name}".encode()).hexdigest()[:28]


def declared_name(schedule: Schedule) -> str | None:
    """Return the name of the table that a schedule came from; None for one that people made."""
    if not schedule.created_by.startswith(FILE_AUTHOR):
        return None
    name = schedule.created_by.removeprefix(FILE_AUTHOR)
    return name if schedule.id == declared_id(schedule.account, name) else None


class Schedules:
    """The schedules of conversations, in transactions of their own."""

    def __init__(self, database: Database, settings: ScheduleSettings) -> None:
        self._database = database
        self.settings = settings

    async def create(self, new: NewSchedule) -> Schedule:
        """Create a schedule; raises TooManySchedules, DatabaseUnavailable."""
        async with self._database.begin() as connection:
            return await create_schedule(connection, new, limit=self.settings.limit)

    async def list_unfinished(self, account: str, conversation: str, *, limit: int) -> Sequence[Schedule]:
        """Return the schedules of a conversation that are active or paused."""
        async with self._database.read() as connection:
            return await store.list_unfinished(connection, account, conversation, limit=limit)

    async def delete(self, account: str, conversation: str, schedule: str) -> bool:
        """Delete a schedule of a conversation; returns False if there is none. Raises ScheduleManaged."""
        async with self._database.begin() as connection:
            found = await store.get(connection, account, schedule)
            if found is None or found.conversation != conversation:
                return False
            ensure_not_declared(found)
            return await store.delete_schedule(connection, account, schedule)


def ensure_not_declared(schedule: Schedule) -> None:
    """Raise ScheduleManaged for a schedule of the settings file."""
    if declared_name(schedule) is not None:
        raise ScheduleManaged((ScheduleManaged.__doc__ or "").strip())


async def create_schedule(connection: Connection, new: NewSchedule, *, limit: int) -> Schedule:
    """Create a schedule; raises TooManySchedules, InvalidRecurrence. A known id returns its schedule."""
    known = await store.get(connection, new.account, new.id) if new.id else None
    if known is not None:
        return known
    if await store.count_unfinished(connection, new.account) >= limit:
        raise TooManySchedules(
            f"the account has {limit} schedules, which is its limit: delete one, or ask the operator "
            "to raise schedule_limit"
        )
    now = utc_now()
    schedule = with_recurrence(
        Schedule(
            id=new.id or new_id("sch"),
            account=new.account,
            conversation=new.conversation,
            kind=new.kind,
            text=new.text,
            at=None,
            every_seconds=None,
            cron=None,
            timezone="UTC",
            missed=new.missed,
            state=ScheduleState.PAUSED if new.paused else ScheduleState.ACTIVE,
            next_at=None,
            heartbeat=new.heartbeat,
            created_by=new.created_by,
            created_at=now,
        ),
        new.recurrence,
        now,
    )
    await store.insert_schedule(connection, schedule)
    return schedule


def recurrence_of(schedule: Schedule) -> Recurrence:
    """Return when a schedule is due."""
    every = None if schedule.every_seconds is None else timedelta(seconds=schedule.every_seconds)
    return Recurrence(at=schedule.at, every=every, cron=schedule.cron, timezone=schedule.timezone)


def with_recurrence(schedule: Schedule, recurrence: Recurrence, now: datetime) -> Schedule:
    """Return a schedule with new times; one that had ended is active again. Raises InvalidRecurrence."""
    every = recurrence.every
    state = ScheduleState.ACTIVE if schedule.state is ScheduleState.ENDED else schedule.state
    return replace(
        schedule,
        at=recurrence.at,
        every_seconds=None if every is None else int(every.total_seconds()),
        cron=recurrence.cron,
        timezone=recurrence.timezone,
        state=state,
        next_at=recurrence.first(now) if state is ScheduleState.ACTIVE else None,
        note="",
    )


def paused(schedule: Schedule) -> Schedule:
    """Return the schedule paused; raises ScheduleEnded."""
    if schedule.state is ScheduleState.ENDED:
        raise ScheduleEnded("the schedule has ended; give it a new time, or delete it")
    return replace(schedule, state=ScheduleState.PAUSED, next_at=None)


def resumed(schedule: Schedule, now: datetime) -> Schedule:
    """Return the schedule active, due at its next time after `now`; raises ScheduleEnded."""
    if schedule.state is ScheduleState.ACTIVE:
        return schedule
    if schedule.state is ScheduleState.ENDED or (schedule.at is not None and schedule.at <= now):
        raise ScheduleEnded("the schedule's time has passed; give it a new one")
    try:
        following = recurrence_of(schedule).first(now)
    except InvalidRecurrence as error:
        raise ScheduleEnded(f"{error.detail}; give it a new time") from None
    return replace(schedule, state=ScheduleState.ACTIVE, next_at=following, note="")
