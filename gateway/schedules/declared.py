"""`[schedules.NAME]` of the settings file: schedules of the first account that the file alone changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import AwareDatetime, ConfigDict, Field, StrictBool, ValidationError

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries.transactions import Transaction
from egress.typed_model import TypedModel
from gateway.config.settings import Settings
from gateway.conversations.submissions.conversation_lookup import AGENT_GONE, create_conversation
from gateway.records.bootstrap import Defaults, ensure_defaults
from gateway.records.declared import (
    ChangeKind,
    DeclaredRecords,
    RecordChange,
    apply_declared,
    declared_problems,
)
from gateway.records.errors import InvalidRecord
from gateway.records.input_problems import to_problems
from gateway.records.records import Records
from gateway.records.rules.sandbox_ceilings import FIRST_ACCOUNT
from gateway.schedules.heartbeat import REMINDERS_ARE_SENT
from gateway.schedules.recurrence import InvalidRecurrence, Recurrence, parse_recurrence
from gateway.schedules.schedules import (
    FILE_AUTHOR,
    MAX_TEXT,
    NewSchedule,
    TooManySchedules,
    create_schedule,
    declared_id,
    declared_name,
    paused,
    recurrence_of,
    resumed,
    with_recurrence,
)
from gateway.store.accounts import accounts
from gateway.store.accounts import records as record_store
from gateway.store.conversations import conversations
from gateway.store.conversations import schedules as store
from gateway.store.conversations.schedules import MissedRule, Schedule, ScheduleKind, ScheduleState
from sandbox.config import ConfigProblem

MAX_NAME = 100
_ATTEMPTS = 5


class _DeclaredSchedule(TypedModel):
    """A table: what the request takes that creates a schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    conversation: str = Field(min_length=1, max_length=300)
    text: str = Field(min_length=1, max_length=MAX_TEXT)
    agent: str | None = Field(default=None, min_length=1, max_length=300)
    at: AwareDatetime | None = None
    every: str | None = Field(default=None, min_length=1, max_length=100)
    cron: str | None = Field(default=None, min_length=1, max_length=100)
    timezone: str | None = Field(default=None, min_length=1, max_length=100)
    kind: ScheduleKind = ScheduleKind.TURN
    missed: MissedRule = MissedRule.ONCE
    paused: StrictBool = False
    heartbeat: StrictBool = False


async def ensure_defaults_and_schedules(
    connection: Connection, records: Records, settings: Settings
) -> Defaults:
    """Create missing defaults, and apply what the settings declare; raises InvalidRecord."""
    found = await accounts.get_account(connection, name=FIRST_ACCOUNT)
    owners = await _conversation_owners(connection, found.id, settings) if found is not None else {}
    defaults = await ensure_defaults(
        connection,
        records,
        data=settings.data_dir,
        agent=settings.agent,
        provider=settings.sandbox.provider,
        declared=DeclaredRecords.from_settings(settings),
    )
    await _apply_schedules(connection, defaults.account, settings, owners)
    return defaults


async def apply_file(
    connection: Connection, records: Records, account: str, settings: Settings
) -> list[RecordChange]:
    """Make the account's records and schedules of the file those of its tables; raises InvalidRecord.

    Records and schedules that people and programs made are left alone. A time that has passed makes no
    schedule.
    """
    owners = await _conversation_owners(connection, account, settings)
    changes = await apply_declared(connection, records, account, DeclaredRecords.from_settings(settings))
    return [*changes, *await _apply_schedules(connection, account, settings, owners)]


async def _conversation_owners(connection: Connection, account: str, settings: Settings) -> dict[str, str]:
    """Return the agents of the conversations that tables name, before the file is applied, by their names."""
    owners = {}
    for table in settings.schedules.values():
        name = table.get("conversation")
        found = await conversations.get(connection, account, name) if isinstance(name, str) else None
        owner = await record_store.get_by_id(connection, found.agent) if found is not None else None
        if owner is not None:
            owners[str(name)] = owner.name
    return owners


async def _apply_schedules(
    connection: Connection, account: str, settings: Settings, owners: Mapping[str, str]
) -> list[RecordChange]:
    if problems := list(_schedule_problems(settings)):
        raise InvalidRecord(problems)
    changes = await _delete_others(connection, account, settings.schedules)
    for name, table in settings.schedules.items():
        changes += await _apply(connection, account, name, table, settings, owners=owners)
    return changes


async def _delete_others(
    connection: Connection, account: str, wanted: Mapping[str, Any]
) -> list[RecordChange]:
    changes = []
    for one in await store.list_by_author(connection, account, FILE_AUTHOR):
        name = declared_name(one)
        if name is not None and name not in wanted:
            await store.delete_schedule(connection, account, one.id)
            changes.append(RecordChange(change=ChangeKind.DELETE, kind="schedule", name=name))
    return changes


async def _apply(
    connection: Connection,
    account: str,
    name: str,
    table: Mapping[str, Any],
    settings: Settings,
    *,
    owners: Mapping[str, str],
) -> Sequence[RecordChange]:
    below = f"/schedules/{name}"
    declared, times = _parse(name, table, settings)
    if times is None:
        return ()
    conversation = await _conversation(connection, account, declared, below, owners)
    present = await store.get(connection, account, declared_id(account, name))
    if present is not None:
        wanted = partial(_changed, declared=declared, times=times, conversation=conversation)
        return await _update(connection, name, present, wanted)
    new = NewSchedule(
        id=declared_id(account, name),
        account=account,
        conversation=conversation,
        text=declared.text,
        recurrence=times,
        created_by=f"{FILE_AUTHOR}{name}",
        kind=declared.kind,
        missed=declared.missed,
        paused=declared.paused,
        heartbeat=declared.heartbeat,
    )
    try:
        await create_schedule(connection, new, limit=settings.schedule_limit)
    except TooManySchedules as error:
        raise _problem(below, str(error)) from None
    return (RecordChange(change=ChangeKind.CREATE, kind="schedule", name=name),)


def table_problems(settings: Settings) -> list[ConfigProblem]:
    """Return what is wrong with each table of a record or schedule by itself, without a database."""
    problems = list(_schedule_problems(settings))
    try:
        problems += declared_problems(DeclaredRecords.from_settings(settings))
    except InvalidRecord as error:
        problems += error.problems
    return problems


def _schedule_problems(settings: Settings) -> Iterator[ConfigProblem]:
    for name, table in settings.schedules.items():
        try:
            _parse(name, table, settings)
        except InvalidRecord as error:
            yield from error.problems


def _parse(
    name: str, table: Mapping[str, Any], settings: Settings
) -> tuple[_DeclaredSchedule, Recurrence | None]:
    """Return a table and its times, None if its time has passed; raises InvalidRecord."""
    below = f"/schedules/{name}"
    if not name.strip() or len(name) > MAX_NAME:
        raise _problem(below, f"the name of a schedule has 1 to {MAX_NAME} characters")
    try:
        declared = _DeclaredSchedule.model_validate(dict(table))
    except ValidationError as error:
        raise InvalidRecord(to_problems(error, table, _DeclaredSchedule, below=below)) from error
    if declared.heartbeat and declared.kind is ScheduleKind.REMINDER:
        raise _problem(f"{below}/heartbeat", REMINDERS_ARE_SENT)
    if declared.at is not None and declared.at <= utc_now():
        return declared, None
    try:
        return declared, parse_recurrence(
            now=utc_now(),
            at=declared.at,
            every=declared.every,
            cron=declared.cron,
            timezone=declared.timezone or settings.timezone,
        )
    except InvalidRecurrence as error:
        raise _problem(f"{below}/{error.field}", error.detail) from None


async def _conversation(
    connection: Connection,
    account: str,
    declared: _DeclaredSchedule,
    below: str,
    owners: Mapping[str, str],
) -> str:
    """Return the id of the conversation, which a new name creates."""
    agent = await record_store.get(connection, account, "agent", declared.agent or "default")
    if agent is None:
        raise _problem(f"{below}/agent", f"there is no agent {declared.agent!r} in this account")
    found = await conversations.get(connection, account, declared.conversation)
    if found is not None:
        owner = await record_store.get_by_id(connection, found.agent)
        if owner is None:
            why = _why_gone(declared.conversation, owners.get(declared.conversation))
            raise _problem(f"{below}/conversation", why)
        if declared.agent is not None and owner.id != agent.id:
            remedy = "name that agent, or another conversation"
            raise _problem(f"{below}/agent", f"the conversation belongs to agent {owner.name!r}: {remedy}")
        return found.id
    if conversations.to_id(declared.conversation).startswith("cnv_"):
        raise _problem(f"{below}/conversation", f"there is no conversation {declared.conversation!r}")
    made = await create_conversation(
        Transaction(connection), account=account, agent=agent.id, name=declared.conversation
    )
    return made.id


def _why_gone(conversation: str, owner: str | None) -> str:
    """Return why a conversation without an agent cannot be used; `owner`: the agent that the file removes."""
    if owner is None:
        return AGENT_GONE
    return (
        f"the conversation {conversation!r} belongs to agent {owner!r}, which the file does not declare any "
        "more, and a renamed agent is a new one: name another conversation, or keep "
        f"[agents.{owner}] beside the new agent"
    )


async def _update(
    connection: Connection, name: str, present: Schedule, wanted: Callable[[Schedule], Schedule]
) -> Sequence[RecordChange]:
    """Change a schedule where it differs; it may fire at this moment."""
    for _attempt in range(_ATTEMPTS):
        after = wanted(present)
        fields = tuple(sorted(_differing(present, after)))
        if not fields:
            return ()
        if await store.update_schedule(connection, present, after):
            return (RecordChange(change=ChangeKind.UPDATE, kind="schedule", name=name, fields=fields),)
        found = await store.get(connection, present.account, present.id)
        if found is None:
            return ()
        present = found
    raise _problem(f"/schedules/{name}", "the schedule fires again and again at this moment: try again")


def _changed(
    present: Schedule, *, declared: _DeclaredSchedule, times: Recurrence, conversation: str
) -> Schedule:
    after = replace(
        present,
        conversation=conversation,
        text=declared.text,
        kind=declared.kind,
        missed=declared.missed,
        heartbeat=declared.heartbeat,
    )
    if recurrence_of(present) != times:
        after = with_recurrence(after, times, utc_now())
    if after.state is ScheduleState.ENDED:
        return after
    return paused(after) if declared.paused else resumed(after, utc_now())


def _differing(before: Schedule, after: Schedule) -> list[str]:
    names = ["conversation", "text", "kind", "missed", "heartbeat"]
    names += ["at", "every_seconds", "cron", "timezone", "state"]
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def _problem(pointer: str, detail: str) -> InvalidRecord:
    return InvalidRecord([ConfigProblem(pointer=pointer, detail=detail)])
