"""The tools schedule_create, schedule_list and schedule_delete: turns and reminders of this conversation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from delivery.database.clock import utc_now
from delivery.events.event import rfc3339
from gateway.agents.port import ToolResult, ToolSpec
from gateway.schedules.heartbeat import REMINDERS_ARE_SENT
from gateway.schedules.recurrence import InvalidRecurrence, Recurrence, parse_recurrence
from gateway.schedules.schedules import MAX_TEXT, NewSchedule, ScheduleManaged, Schedules, TooManySchedules
from gateway.store.conversations.schedules import Schedule, ScheduleKind
from gateway.tools.approval_rules import edits_need_approval
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, fixed, str_argument

MAX_LISTED = 50


def _create_spec(context: ToolContext) -> ToolSpec:
    timezone = _schedules(context).settings.timezone
    return ToolSpec(
        name="schedule_create",
        description=(
            "Schedule something in this conversation: once (`at`), at intervals (`every`) or by `cron`. "
            "With kind 'reminder' the text itself is sent to the people; with kind 'turn' you are given "
            "the text at that time and answer it; with `heartbeat` an answer HEARTBEAT_OK is not sent. "
            "schedule_list tells you the present time."
        ),
        schema={
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "kind": {"type": "string", "enum": [str(kind) for kind in ScheduleKind]},
                "at": {"type": "string", "description": "RFC 3339, such as 2030-01-31T09:00:00+01:00"},
                "every": {"type": "string", "description": "ISO 8601 duration of PT60S at least"},
                "cron": {"type": "string", "description": "minute, hour, day of month, month, day of week"},
                "timezone": {"type": "string", "description": f"of cron; {timezone} unless given"},
                "heartbeat": {"type": "boolean"},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
    )


async def _create(context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
    schedules, text = _schedules(context), str_argument(args, "text")
    if len(text) > MAX_TEXT:
        raise InvalidArguments(f"text must have at most {MAX_TEXT} characters, not {len(text)}")
    new = NewSchedule(
        account=context.turn.account,
        conversation=context.turn.conversation,
        text=text,
        recurrence=_recurrence(args, schedules.settings.timezone),
        created_by=context.turn.asker,
        kind=ScheduleKind(args.get("kind") or ScheduleKind.TURN),
        heartbeat=_is_heartbeat(args),
        id=f"sch_{hashlib.sha256(key.encode()).hexdigest()[:26]}",
    )
    try:
        schedule = await schedules.create(new)
    except TooManySchedules as error:
        return ToolResult(ok=False, content=str(error))
    shape = _shape(schedule)
    return ToolResult(ok=True, content=json.dumps(shape, ensure_ascii=False), detail=shape)


def _is_heartbeat(args: Mapping[str, Any]) -> bool:
    if args.get("heartbeat") and args.get("kind") == ScheduleKind.REMINDER:
        raise InvalidArguments(REMINDERS_ARE_SENT)
    return bool(args.get("heartbeat"))


def _recurrence(args: Mapping[str, Any], timezone: str) -> Recurrence:
    at = str_argument(args, "at", required=False)
    try:
        moment = datetime.fromisoformat(at) if at else None
    except ValueError:
        raise InvalidArguments(f"at must be a time such as 2030-01-31T09:00:00+01:00, not {at!r}") from None
    try:
        return parse_recurrence(
            now=utc_now(),
            at=moment,
            every=str_argument(args, "every", required=False) or None,
            cron=str_argument(args, "cron", required=False) or None,
            timezone=str_argument(args, "timezone", required=False) or timezone,
        )
    except InvalidRecurrence as error:
        raise InvalidArguments(str(error)) from None


async def _list(context: ToolContext, _args: Mapping[str, Any], _key: str) -> ToolResult:
    turn = context.turn
    found = await _schedules(context).list_unfinished(turn.account, turn.conversation, limit=MAX_LISTED)
    shape = {"now": rfc3339(utc_now()), "schedules": [_shape(one) for one in found]}
    return ToolResult(ok=True, content=json.dumps(shape, ensure_ascii=False), detail=shape)


async def _delete(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    schedule = str_argument(args, "schedule")
    try:
        deleted = await _schedules(context).delete(context.turn.account, context.turn.conversation, schedule)
    except ScheduleManaged as error:
        return ToolResult(ok=False, content=str(error))
    if deleted:
        return ToolResult(ok=True, content=f"{schedule} is deleted")
    return ToolResult(ok=False, content=f"there is no schedule {schedule!r} in this conversation")


def _shape(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule in the form that a model reads."""
    shape: dict[str, Any] = {
        "id": schedule.id,
        "kind": str(schedule.kind),
        "text": schedule.text,
        "state": str(schedule.state),
        "timezone": schedule.timezone,
    }
    shape |= {"heartbeat": True} if schedule.heartbeat else {}
    shape |= {"cron": schedule.cron} if schedule.cron else {}
    shape |= {"every_seconds": schedule.every_seconds} if schedule.every_seconds else {}
    return shape | ({"next_at": rfc3339(schedule.next_at)} if schedule.next_at else {})


def _schedules(context: ToolContext) -> Schedules:
    if context.schedules is None:
        raise InvalidArguments("schedules cannot be used here")
    return context.schedules


def _is_available(context: ToolContext) -> bool:
    return context.schedules is not None and not context.environment.files_only


def _spec(name: str, description: str, properties: Mapping[str, Any]) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return ToolSpec(name=name, description=description, schema={**schema, "required": list(properties)})


schedule_create = Tool(
    spec=_create_spec,
    needs_approval=edits_need_approval,
    run=_create,
    idempotent=True,
    is_available=_is_available,
    uses_workspace=False,
)

schedule_list = Tool(
    spec=fixed(
        _spec("schedule_list", "List what is scheduled in this conversation, with the present time.", {})
    ),
    needs_approval=lambda _config: False,
    run=_list,
    idempotent=True,
    is_available=_is_available,
    uses_workspace=False,
)

schedule_delete = Tool(
    spec=fixed(
        _spec("schedule_delete", "Delete a schedule of this conversation.", {"schedule": {"type": "string"}})
    ),
    needs_approval=edits_need_approval,
    run=_delete,
    idempotent=True,
    is_available=_is_available,
    uses_workspace=False,
)
