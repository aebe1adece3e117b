"""SQL of usage (sandbox seconds, model tokens and costs) with its totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import Executable, bindparam, func, select, update

from delivery.database.batched_deletes import delete_batch
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.accounts import records
from gateway.store.sandbox_tables import sandboxes, usage, usage_totals

_FIND = select(usage).where(usage.c.id == bindparam("of"))
_NUMBERS = ("seconds", "requests", "input_tokens", "output_tokens", "micros")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much was used; `micros` are millionths of the prices' currency."""

    seconds: float = 0.0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    micros: int = 0

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Amount) -> Amount:
        return Amount(**{name: getattr(self, name) + getattr(other, name) for name in _NUMBERS})

    def __sub__(self, other: Amount) -> Amount:
        return Amount(**{name: getattr(self, name) - getattr(other, name) for name in _NUMBERS})


class UsageKind(StrEnum):
    """What was used."""

    MODEL = "model"
    SANDBOX = "sandbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """One usage row: an activity span of a sandbox, or a turn's use of a model."""

    id: str
    account: str
    agent: str
    conversation: str
    kind: UsageKind
    what: str
    reason: str
    amount: Amount
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedUsage:
    """What a record added, and until when the turn's reservation had lasted that it replaced, if any."""

    more: Amount
    reserved_until: datetime | None = None


def usage_values(row: UsageRow) -> dict[str, Any]:
    """Return the columns of a usage row."""
    own = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "amount"}
    return own | {name: getattr(row.amount, name) for name in _NUMBERS}


def _amount(row: Any) -> Amount:
    return Amount(**{name: getattr(row, name) or 0 for name in _NUMBERS})


@cache
def _insert(dialect: str) -> Executable:
    return insert_on_conflict(usage, dialect).on_conflict_do_nothing().returning(usage.c.id)


async def record(connection: Connection, row: UsageRow) -> RecordedUsage:
    """Insert or replace a usage row, end its reservation, and update the totals."""
    inserted = await connection.execute(_insert(connection.dialect.name), usage_values(row))
    before = None
    if inserted.first() is None:
        before = (await connection.execute(_FIND, {"of": row.id})).one()
        values = usage_values(row) | {"reserved": None, "reserved_until": None}
        await connection.execute(update(usage).where(usage.c.id == row.id).values(values))
    more = row.amount - (_amount(before) if before else Amount())
    await _increase_totals(connection, row.account, row.agent, more)
    return RecordedUsage(more=more, reserved_until=before.reserved_until if before else None)


async def _increase_totals(connection: Connection, account: str, agent: str, more: Amount) -> None:
    values = {name: getattr(more, name) for name in _NUMBERS}
    given = {"account": account, "agent": agent, **values}
    await connection.execute(_add_to_totals(connection.dialect.name), given)


@cache
def _add_to_totals(dialect: str) -> Executable:
    asked = insert_on_conflict(usage_totals, dialect)
    return asked.on_conflict_do_update(
        index_elements=["account", "agent"],
        set_={name: usage_totals.c[name] + asked.excluded[name] for name in _NUMBERS},
    )


async def keep_name(connection: Connection, account: str, agent: str, name: str) -> None:
    """Keep the name of an agent that is deleted; its usage stays."""
    await _increase_totals(connection, account, agent, Amount())
    kept = update(usage_totals).where(usage_totals.c.account == account, usage_totals.c.agent == agent)
    await connection.execute(kept.values(deleted_name=name))


async def deleted_names(connection: Connection, account: str) -> dict[str, str]:
    """Return the names that deleted agents of an account had."""
    rows = await connection.execute(
        select(usage_totals.c.agent, usage_totals.c.deleted_name).where(
            usage_totals.c.account == account, usage_totals.c.deleted_name.is_not(None)
        )
    )
    return {row[0]: row[1] for row in rows}


async def agent_name(connection: Connection, account: str, agent: str) -> str:
    """Return the name that an agent has, or had before it was deleted; its id if that is not known."""
    record = await records.get_by_id(connection, agent)
    if record is not None:
        return record.name
    return (await deleted_names(connection, account)).get(agent, agent)


async def totals(connection: Connection, account: str) -> Mapping[str, Amount]:
    """Return an account's usage by agent."""
    rows = await connection.execute(select(usage_totals).where(usage_totals.c.account == account))
    return {row.agent: _amount(row) for row in rows}


async def running_seconds(connection: Connection, account: str, now: datetime) -> Mapping[str, float]:
    """Return the seconds of the stretches that have not ended yet, by agent."""
    rows = await connection.execute(
        select(sandboxes.c.agent, sandboxes.c.active_since).where(
            sandboxes.c.account == account, sandboxes.c.active_since.is_not(None)
        )
    )
    found: dict[str, float] = {}
    for row in rows:
        found[row.agent] = found.get(row.agent, 0.0) + max((now - row.active_since).total_seconds(), 0.0)
    return found


async def sum_by_reason(connection: Connection, account: str) -> Sequence[tuple[UsageKind, str, str, Amount]]:
    """Return an account's usage by kind, what and reason."""
    sums = [func.sum(usage.c[name]).label(name) for name in _NUMBERS]
    keys = (usage.c.kind, usage.c.what, usage.c.reason)
    rows = await connection.execute(
        select(*keys, *sums).where(usage.c.account == account).group_by(*keys).order_by(*keys)
    )
    return [(UsageKind(row.kind), row.what, row.reason, _amount(row)) for row in rows]


async def sum_of_conversation(
    connection: Connection, account: str, conversation: str
) -> Mapping[str, Amount]:
    """Return the usage of a conversation by kind (`model`, `sandbox`)."""
    sums = [func.coalesce(func.sum(usage.c[name]), 0).label(name) for name in _NUMBERS]
    rows = await connection.execute(
        select(usage.c.kind, *sums)
        .where(usage.c.account == account, usage.c.conversation == conversation)
        .group_by(usage.c.kind)
    )
    return {row.kind: _amount(row) for row in rows}


async def delete_before(connection: Connection, *, before: datetime) -> int:
    """Delete some usage rows that ended before a moment; return their number. Totals stay."""
    return await delete_batch(connection, usage, usage.c.ended_at < before)
