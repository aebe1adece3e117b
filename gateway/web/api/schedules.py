"""Schedules over HTTP: create, list, show, change, run and delete."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, StrictBool, StrictStr

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries.transactions import Transaction
from gateway.conversations.submissions.conversation_lookup import get_or_create_lasting_conversation
from gateway.conversations.submissions.submission import (
    QueueFull,
    Submission,
    UnknownAgent,
    UnknownTarget,
    WrongAgent,
)
from gateway.records.errors import ManagedByOperator
from gateway.schedules.firing import ScheduleDeleted
from gateway.schedules.heartbeat import REMINDERS_ARE_SENT
from gateway.schedules.recurrence import InvalidRecurrence, Recurrence, parse_recurrence
from gateway.schedules.schedules import (
    MAX_TEXT,
    NewSchedule,
    ScheduleEnded,
    ScheduleManaged,
    TooManySchedules,
    create_schedule,
    declared_name,
    ensure_not_declared,
    paused,
    recurrence_of,
    resumed,
    with_recurrence,
)
from gateway.store.conversations import schedules as store
from gateway.store.conversations.schedules import MissedRule, Schedule, ScheduleKind, ScheduleState
from gateway.web.api.conversations import filter_by
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.preconditions import ensure_preconditions
from gateway.web.http.problems import HttpProblem, invalid_field, not_found
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel

Text = Annotated[StrictStr, Field(min_length=1, max_length=MAX_TEXT)]
Short = Annotated[StrictStr, Field(min_length=1, max_length=100)]
ConversationName = Annotated[StrictStr, Field(min_length=1, max_length=300)]


class ScheduleTimes(RequestModel):
    """When a schedule is due: `at` (RFC 3339), `every` (ISO 8601, 60 s at least) or `cron` (five fields).

    `cron` is read in `timezone`, a name of IANA; without it in the operator's time zone.
    """

    at: AwareDatetime | None = None
    every: Short | None = None
    cron: Short | None = None
    timezone: Short | None = None


class ScheduleCreate(ScheduleTimes):
    """A new schedule. A new `conversation` name creates a conversation, with `agent` if that is given.

    The turns of a `heartbeat` send no message if the agent answers HEARTBEAT_OK or nothing.
    """

    conversation: ConversationName
    agent: ConversationName | None = None
    text: Text
    kind: ScheduleKind = ScheduleKind.TURN
    missed: MissedRule = MissedRule.ONCE
    paused: StrictBool = False
    heartbeat: StrictBool = False


class ScheduleUpdate(ScheduleTimes):
    """The fields to change; new times replace the old ones, and start an ended schedule again."""

    text: Text | None = None
    missed: MissedRule | None = None
    paused: StrictBool | None = None
    heartbeat: StrictBool | None = None


class ScheduleQuery(PageQuery):
    """A page of the schedules, of one conversation if it is given."""

    conversation: ConversationName | None = None


class ScheduleResponse(ResponseModel):
    """A schedule. `note` says why it ended or what was skipped.

    One of the operator's settings file has the `name` of its table; it is `managed`, so changed there alone.
    """

    id: str
    conversation: str
    kind: ScheduleKind
    text: str
    at: datetime | None
    every: timedelta | None
    cron: str | None
    timezone: str
    missed: MissedRule
    heartbeat: bool
    paused: bool
    state: ScheduleState
    next_at: datetime | None
    last_at: datetime | None
    last_turn: str | None
    fired: int
    note: str
    created_by: str
    created_at: datetime
    name: str | None = None
    managed: bool = False


class ScheduleRun(ResponseModel):
    """What was started: the turn, or null for a reminder."""

    schedule: str
    turnId: str | None


def to_response(schedule: Schedule) -> ScheduleResponse:
    """Return a schedule as a response."""
    return ScheduleResponse(
        id=schedule.id,
        conversation=schedule.conversation,
        kind=schedule.kind,
        text=schedule.text,
        at=schedule.at,
        every=recurrence_of(schedule).every,
        cron=schedule.cron,
        timezone=schedule.timezone,
        missed=schedule.missed,
        heartbeat=schedule.heartbeat,
        paused=schedule.state is ScheduleState.PAUSED,
        state=schedule.state,
        next_at=schedule.next_at,
        last_at=schedule.last_at,
        last_turn=schedule.last_turn,
        fired=schedule.fired,
        note=schedule.note,
        created_by=schedule.created_by,
        created_at=schedule.created_at,
        name=declared_name(schedule),
        managed=declared_name(schedule) is not None,
    )


async def create(call: ApiCall[ScheduleCreate, NoContent]) -> ScheduleResponse:
    """Create a schedule."""
    body, settings = call.body, call.services.schedule_settings
    recurrence = _recurrence(body, settings.timezone)
    async with call.services.transactions.begin("command") as tx:
        new = NewSchedule(
            account=call.account,
            conversation=await _conversation(call, tx),
            text=body.text,
            recurrence=recurrence,
            created_by=call.principal.key,
            kind=body.kind,
            missed=body.missed,
            paused=body.paused,
            heartbeat=_check_heartbeat(body.heartbeat, body.kind),
        )
        try:
            return to_response(await create_schedule(tx.connection, new, limit=settings.limit))
        except TooManySchedules as error:
            raise HttpProblem(429, str(error)) from None


async def list_schedules(call: ApiCall[NoContent, ScheduleQuery]) -> ListPage[ScheduleResponse]:
    """List the schedules in the order of their creation."""
    query = call.query
    async with call.context.database.read() as connection:
        conversation = await filter_by(connection, call.account, query.conversation)
        found = await store.list_for_account(
            connection, call.account, conversation=conversation, after=query.after, limit=query.limit + 1
        )
    page, following = paginate(found, query.limit)
    return ListPage[ScheduleResponse](items=[to_response(one) for one in page], next=following)


async def get(call: ApiCall[NoContent, NoContent]) -> ScheduleResponse:
    """Return one schedule."""
    return to_response(await _require(call))


async def update(call: ApiCall[ScheduleUpdate, NoContent]) -> ScheduleResponse:
    """Change a schedule."""
    async with call.context.database.begin() as connection:
        present = await _get_to_change(call, connection)
        changed = _changed(present, call.body)
        if not await store.update_schedule(connection, present, changed):
            raise HttpProblem(409, "the schedule fired or was changed at this moment; try again")
    return to_response(changed)


def _changed(present: Schedule, body: ScheduleUpdate) -> Schedule:
    """Return a schedule with the fields that a request names; raises for those that do not fit."""
    changed = replace(present, text=body.text or present.text, missed=body.missed or present.missed)
    if body.model_fields_set & {"at", "every", "cron"}:
        changed = with_recurrence(changed, _recurrence(body, present.timezone), utc_now())
    elif body.timezone is not None:
        raise invalid_field("/timezone", "give at, every or cron as well: a time zone changes the times")
    if body.heartbeat is not None:
        changed = replace(changed, heartbeat=_check_heartbeat(body.heartbeat, changed.kind))
    if body.paused is None:
        return changed
    try:
        return paused(changed) if body.paused else resumed(changed, utc_now())
    except ScheduleEnded as error:
        raise HttpProblem(409, str(error)) from None


async def run_now(call: ApiCall[NoContent, NoContent]) -> ScheduleRun:
    """Start what a schedule starts now, besides its times."""
    schedule = await _require(call)
    try:
        return ScheduleRun(
            schedule=schedule.id, turnId=await call.services.schedule_firing.fire_now(schedule)
        )
    except QueueFull as error:
        raise HttpProblem(429, str(error)) from None
    except ScheduleDeleted as error:
        raise not_found(str(error)) from None
    except UnknownTarget as error:
        raise HttpProblem(409, str(error)) from None


async def delete(call: ApiCall[NoContent, NoContent]) -> None:
    """Delete a schedule; a turn that it has started continues."""
    async with call.context.database.begin() as connection:
        found = await _get_to_change(call, connection)
        await store.delete_schedule(connection, call.account, found.id)


async def _get_to_change(call: ApiCall[Any, Any], connection: Connection) -> Schedule:
    """Return the schedule of the path, locked; raises for one that this request may not change."""
    found = await store.get(connection, call.account, call.path["id"], locked=True)
    if found is None:
        raise _unknown()
    _refuse_managed(found)
    ensure_preconditions(call.request, to_response(found))
    return found


async def _require(call: ApiCall[NoContent, NoContent]) -> Schedule:
    async with call.context.database.read() as connection:
        found = await store.get(connection, call.account, call.path["id"])
    if found is None:
        raise _unknown()
    return found


def _refuse_managed(schedule: Schedule) -> None:
    try:
        ensure_not_declared(schedule)
    except ScheduleManaged as error:
        raise ManagedByOperator(str(error)) from None


def _unknown() -> HttpProblem:
    return not_found("there is no such schedule in this account")


def _check_heartbeat(heartbeat: bool, kind: ScheduleKind) -> bool:  # noqa: FBT001 - the field itself
    if heartbeat and kind is ScheduleKind.REMINDER:
        raise invalid_field("/heartbeat", REMINDERS_ARE_SENT)
    return heartbeat


def _recurrence(body: ScheduleTimes, timezone: str) -> Recurrence:
    try:
        return parse_recurrence(
            now=utc_now(), at=body.at, every=body.every, cron=body.cron, timezone=body.timezone or timezone
        )
    except InvalidRecurrence as error:
        raise invalid_field(f"/{error.field}", error.detail) from None


async def _conversation(call: ApiCall[ScheduleCreate, NoContent], tx: Transaction) -> str:
    """Return the id of the conversation, which a new name creates."""
    submission = Submission(
        account=call.account,
        text="",
        asker=call.principal.key,
        agent=call.body.agent,
        conversation=call.body.conversation,
    )
    try:
        return (await get_or_create_lasting_conversation(tx, submission)).id
    except UnknownTarget as error:
        pointer = "/agent" if isinstance(error, UnknownAgent) else "/conversation"
        raise invalid_field(pointer, str(error)) from None
    except WrongAgent as error:
        raise HttpProblem(409, str(error)) from None
