"""The commands `/schedule` and `/remind`: create, list, pause, resume and delete schedules in a chat."""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction
from gateway.schedules.chat_times import FORMS, parse_when
from gateway.schedules.recurrence import InvalidRecurrence
from gateway.schedules.schedules import (
    MAX_TEXT,
    NewSchedule,
    ScheduleEnded,
    ScheduleSettings,
    TooManySchedules,
    create_schedule,
    declared_name,
    paused,
    resumed,
)
from gateway.store.conversations import schedules as store
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.schedules import Schedule, ScheduleKind

HELP = (
    f"`/remind WHEN TEXT` reminds you, `/schedule WHEN TEXT` gives the text to the agent at that time, and "
    "`/schedule` alone lists both. `/schedule pause ID`, `resume ID` and `delete ID` change one. "
    f"WHEN is {FORMS}."
)
MAX_LISTED = 20
MAX_QUOTED = 80
_CHANGES = ("pause", "resume", "delete")


async def execute_schedule_command(
    tx: Transaction,
    conversation: Conversation,
    name: str,
    args: Sequence[str],
    *,
    by: str,
    settings: ScheduleSettings,
) -> str:
    """Execute `/schedule` or `/remind` of the person `by`, and return the reply."""
    if not args:
        return await _list(tx, conversation, settings)
    if len(args) == len(("verb", "id")) and args[0].lower() in _CHANGES:
        return await _change(tx, conversation, args[0].lower(), args[1], settings)
    kind = ScheduleKind.REMINDER if name == "remind" else ScheduleKind.TURN
    return await _create(tx, conversation, kind, args, by=by, settings=settings)


async def _create(
    tx: Transaction,
    conversation: Conversation,
    kind: ScheduleKind,
    args: Sequence[str],
    *,
    by: str,
    settings: ScheduleSettings,
) -> str:
    try:
        recurrence, text = parse_when(args, now=utc_now(), timezone=settings.timezone)
        if not text or len(text) > MAX_TEXT:
            return f"Write a text of 1 to {MAX_TEXT} characters after the time."
        new = NewSchedule(
            account=conversation.account,
            conversation=conversation.id,
            text=text,
            recurrence=recurrence,
            created_by=by,
            kind=kind,
        )
        schedule = await create_schedule(tx.connection, new, limit=settings.limit)
    except InvalidRecurrence as error:
        return f"I did not understand the time: {error.detail}."
    except TooManySchedules as error:
        return f"Not scheduled: {error}."
    what = "I remind you" if kind is ScheduleKind.REMINDER else "I start"
    return f"{what} {_due(schedule, settings)}. This is {schedule.id}."


async def _list(tx: Transaction, conversation: Conversation, settings: ScheduleSettings) -> str:
    found = await store.list_unfinished(
        tx.connection, conversation.account, conversation.id, limit=settings.limit
    )
    lines = [f"- {one.id} {_due(one, settings)}: {_quoted(one)}" for one in found]
    more = [f"and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    return "\n".join([*lines[:MAX_LISTED], *more]) or f"Nothing is scheduled here. {HELP}"


async def _change(
    tx: Transaction, conversation: Conversation, verb: str, schedule_id: str, settings: ScheduleSettings
) -> str:
    found = await store.get(tx.connection, conversation.account, schedule_id)
    if found is None or found.conversation != conversation.id:
        return f"There is no schedule {schedule_id[:40]} in this conversation."
    if declared_name(found) is not None:
        return "Not changed: the schedule is defined in the operator's settings file."
    if verb == "delete":
        await store.delete_schedule(tx.connection, conversation.account, found.id)
        return f"Deleted: {_quoted(found)}."
    try:
        changed = paused(found) if verb == "pause" else resumed(found, utc_now())
    except ScheduleEnded as error:
        return f"Not changed: {error}."
    if not await store.update_schedule(tx.connection, found, changed):
        return "It fired at this moment; try again."
    return f"{_quoted(changed)} is {_due(changed, settings)}."


def _due(schedule: Schedule, settings: ScheduleSettings) -> str:
    """Return when a schedule is due, in the operator's time zone."""
    if schedule.next_at is None:
        return f"{schedule.state}"
    due = f"{schedule.next_at.astimezone(ZoneInfo(settings.timezone)):%Y-%m-%d %H:%M %Z}"
    return f"at {due}" if schedule.at is not None else f"at {due} and regularly after it"


def _quoted(schedule: Schedule) -> str:
    text = " ".join(schedule.text.split()).replace("`", "'")
    return f"`{text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + '…'}`"
