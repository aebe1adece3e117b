"""SQL of budgets: limits, counters, and the reservations of running model requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)

from delivery.database.batched_deletes import delete_batch
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.accounts.usage import UsageRow, usage_values
from gateway.store.memory_tables import persons
from gateway.store.sandbox_tables import budget_counters as table
from gateway.store.sandbox_tables import budgets, usage
from gateway.store.tables import accounts

ACCOUNT_OWNER = ""
"""The owner of an account's own counters."""

MICROS = 1_000_000

_DAY_LENGTH = len("2030-01-31")

TOTAL_PERIOD = "total"
"""The period of counters that hold what is reserved of total budgets; `usage_totals` has what was used."""


class BudgetKind(StrEnum):
    """What a budget limits; costs are counted in millionths of the prices' currency."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    COST = "cost"


class PeriodName(StrEnum):
    """How long a budget is for."""

    DAY = "day"
    MONTH = "month"
    TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """What limits an account: its budgets, its time zone, and whether a person has a budget of its own."""

    budgets: Mapping[str, Any]
    timezone: str | None
    has_person_budgets: bool


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CounterChange:
    """What is added to one counter: used, reserved, or both; a reservation ends with a negative one."""

    owner: str
    period: str
    kind: BudgetKind
    used: int = 0
    reserved: int = 0
    ceiling: int
    ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCounter:
    """How much of a budget was used in one day or month, and how much is reserved."""

    owner: str
    period: str
    kind: BudgetKind
    used: int
    reserved: int
    ceiling: int
    warned: bool
    ends_at: datetime

    @property
    def period_name(self) -> PeriodName:
        """Whether it is the counter of a day, of a month or of a total budget."""
        if self.period == TOTAL_PERIOD:
            return PeriodName.TOTAL
        return PeriodName.DAY if len(self.period) == _DAY_LENGTH else PeriodName.MONTH


_COLUMNS = [table.c[name] for name in BudgetCounter.__dataclass_fields__]
_KEY = ("account", "owner", "period", "kind")
_LIMITS = (
    select(
        budgets.c.limits,
        accounts.c.timezone,
        exists().where(persons.c.account == bindparam("of"), persons.c.budget.is_not(None)).label("people"),
    )
    .select_from(accounts.outerjoin(budgets, budgets.c.account == accounts.c.id))
    .where(accounts.c.id == bindparam("of"))
)


async def get_limits(connection: Connection, account: str) -> BudgetLimits:
    """Return what limits an account, in one statement."""
    row = (await connection.execute(_LIMITS, {"of": account})).first()
    if row is None:
        return BudgetLimits(budgets={}, timezone=None, has_person_budgets=False)
    return BudgetLimits(budgets=row.limits or {}, timezone=row.timezone, has_person_budgets=bool(row.people))


async def lock(connection: Connection, account: str) -> None:
    """Let no other transaction change the budgets of an account until this one ends, if it locks them too."""
    await connection.execute(select(accounts.c.id).where(accounts.c.id == account).with_for_update())


async def set_budget(connection: Connection, account: str, limits: Mapping[str, Any]) -> None:
    """Set the budgets of an account, and the limits of its counters; those without a limit are not kept.

    So a limit that is set later begins with all earlier usage. One with a reservation stays with the limit 0
    until the request ends.
    """
    await connection.execute(delete(budgets).where(budgets.c.account == account))
    if limits:
        await connection.execute(insert(budgets).values(account=account, limits=dict(limits)))
    rows = await connection.execute(
        select(*_COLUMNS).where(
            table.c.account == account, table.c.owner == ACCOUNT_OWNER, table.c.ends_at > utc_now()
        )
    )
    for counter in [_counter(row) for row in rows]:
        of_period = limits if counter.period == TOTAL_PERIOD else limits.get(counter.period_name) or {}
        amount = of_period.get(counter.kind) or 0
        await _set_ceiling(connection, account, counter, to_units(counter.kind, amount))
    await delete_unlimited(connection, account)


async def _set_ceiling(connection: Connection, account: str, counter: BudgetCounter, ceiling: int) -> None:
    kept = counter.warned and ceiling <= counter.ceiling
    await connection.execute(update(table).where(_is(account, counter)).values(ceiling=ceiling, warned=kept))


async def delete_unlimited(connection: Connection, account: str) -> None:
    """Delete the counters of an account whose limit was removed, and which hold no reservation."""
    await connection.execute(
        delete(table).where(table.c.account == account, table.c.ceiling == 0, table.c.reserved <= 0)
    )


async def delete_counters(connection: Connection, account: str, owner: str) -> None:
    """Delete the counters of an owner whose limits have changed; new ones begin with all earlier usage.

    One with a reservation stays, because the end of the request changes it.
    """
    await connection.execute(
        delete(table).where(table.c.account == account, table.c.owner == owner, table.c.reserved <= 0)
    )


async def update_limits(connection: Connection, account: str, changes: Sequence[CounterChange]) -> None:
    """Store the present limits and ends of the counters that these changes are for, without the changes."""
    for one in changes:
        await connection.execute(
            update(table)
            .where(
                table.c.account == account,
                table.c.owner == one.owner,
                table.c.period == one.period,
                table.c.kind == one.kind,
            )
            .values(ceiling=one.ceiling, ends_at=one.ends_at)
        )


def to_units(kind: BudgetKind, amount: float) -> int:
    """Return an amount of a budget as counters have it."""
    return round(amount * MICROS) if kind is BudgetKind.COST else int(amount)


async def get_person_budget(connection: Connection, account: str, subject: str) -> Mapping[str, Any] | None:
    """Return a person's own budget; None for one who has those of everybody."""
    found = await connection.execute(
        select(persons.c.budget).where(persons.c.account == account, persons.c.subject == subject)
    )
    budget: Mapping[str, Any] | None = found.scalar_one_or_none()
    return budget


async def set_person_budget(
    connection: Connection, account: str, person: str, budget: Mapping[str, Any] | None
) -> bool:
    """Set a person's own budget, or none; returns False if there is no such person."""
    changed = await connection.execute(
        update(persons)
        .where(persons.c.account == account, persons.c.id == person)
        .values(budget=None if budget is None else dict(budget))
    )
    return changed.rowcount > 0


async def change_counters(
    connection: Connection, account: str, changes: Sequence[CounterChange], *, only_below: bool
) -> list[BudgetCounter]:
    """Add to counters in one statement and return those that were changed; the changes must be sorted.

    `only_below`: a counter is changed only while what is used and reserved is below its new ceiling, and
    takes the end that its period has now. A raised ceiling is warned of again. Each row is locked as it is
    changed, so replicas that compete see each other's changes.
    """
    asked = insert_on_conflict(table, connection.dialect.name).values(
        [
            {
                "account": account,
                "owner": change.owner,
                "period": change.period,
                "kind": change.kind,
                "used": change.used,
                "reserved": change.reserved,
                "ceiling": change.ceiling,
                "warned": False,
                "ends_at": change.ends_at,
            }
            for change in changes
        ]
    )
    added = {name: table.c[name] + asked.excluded[name] for name in ("used", "reserved")}
    limit: dict[str, Any] = {name: asked.excluded[name] for name in ("ceiling", "ends_at")}
    limit["warned"] = and_(table.c.warned, asked.excluded.ceiling <= table.c.ceiling)
    statement = asked.on_conflict_do_update(
        index_elements=list(_KEY),
        set_=added | limit if only_below else added,
        where=table.c.used + table.c.reserved < asked.excluded.ceiling if only_below else None,
    ).returning(*_COLUMNS)
    return [_counter(row) for row in await connection.execute(statement)]


def counter_change(counter: BudgetCounter, *, used: int) -> CounterChange:
    """Return the change that adds to what was used of a counter."""
    return CounterChange(
        owner=counter.owner,
        period=counter.period,
        kind=counter.kind,
        used=used,
        ceiling=counter.ceiling,
        ends_at=counter.ends_at,
    )


async def get_full_counter(connection: Connection, account: str, asked: CounterChange) -> BudgetCounter:
    """Return the counter that has refused a change, with the limit and the end that the change has.

    It is found by its key: the stored end is that of an earlier time zone if the account has changed its own.
    """
    key = (table.c.owner == asked.owner, table.c.period == asked.period, table.c.kind == asked.kind)
    row = (await connection.execute(select(*_COLUMNS).where(table.c.account == account, *key))).one()
    return replace(_counter(row), ceiling=asked.ceiling, ends_at=asked.ends_at)


async def list_counters(
    connection: Connection, account: str, *, now: datetime, owners: Sequence[str] | None = None
) -> list[BudgetCounter]:
    """Return the counters with a limit of the present day and month, of all owners or of some."""
    is_shown = (table.c.ends_at > now, table.c.ceiling > 0, table.c.period != TOTAL_PERIOD)
    query = select(*_COLUMNS).where(table.c.account == account, *is_shown)
    if owners is not None:
        query = query.where(table.c.owner.in_(owners))
    rows = await connection.execute(query.order_by(table.c.owner, table.c.period, table.c.kind).limit(1000))
    return [_counter(row) for row in rows]


async def used_since(
    connection: Connection, account: str, *, owner: str, kind: BudgetKind, since: datetime
) -> int:
    """Return what the account, or one of its agents, has used in turns that began after a moment."""
    amount = {
        BudgetKind.REQUESTS: usage.c.requests,
        BudgetKind.TOKENS: usage.c.input_tokens + usage.c.output_tokens,
        BudgetKind.COST: usage.c.micros,
    }[kind]
    query = select(func.coalesce(func.sum(amount), 0)).where(
        usage.c.account == account,
        usage.c.ended_at >= since,
        usage.c.started_at >= since,
        usage.c.kind == "model",
    )
    if owner != ACCOUNT_OWNER:
        query = query.where(usage.c.agent == owner)
    return int((await connection.execute(query)).scalar_one())


async def mark_warned(connection: Connection, account: str, counter: BudgetCounter) -> bool:
    """Record that people were warned about a counter; returns False if another transaction did."""
    changed = await connection.execute(
        update(table).where(_is(account, counter), table.c.warned.is_(False)).values(warned=True)
    )
    return changed.rowcount > 0


def _is(account: str, counter: BudgetCounter) -> ColumnElement[bool]:
    return and_(
        table.c.account == account,
        table.c.owner == counter.owner,
        table.c.period == counter.period,
        table.c.kind == counter.kind,
    )


async def delete_ended_before(connection: Connection, *, before: datetime) -> int:
    """Delete some counters whose period ended before a moment; return their number."""
    return await delete_batch(connection, table, table.c.ends_at < before)


async def list_expired(
    connection: Connection, *, now: datetime, limit: int
) -> list[tuple[str, str, list[CounterChange], datetime]]:
    """Return reservations of requests that have not ended in time: turn, account, what, until when."""
    rows = await connection.execute(
        select(usage.c.id, usage.c.account, usage.c.reserved, usage.c.reserved_until)
        .where(literal_column("reserved_until is not null"), usage.c.reserved_until < now)
        .order_by(usage.c.reserved_until)
        .limit(limit)
    )
    return [(row.id, row.account, decode_changes(row.reserved), row.reserved_until) for row in rows]


async def get_reservation(connection: Connection, turn: str) -> list[CounterChange]:
    """Return what an earlier attempt at a turn has reserved and not given back."""
    found = await connection.execute(select(usage.c.reserved).where(usage.c.id == turn))
    return decode_changes(found.scalar_one_or_none())


async def set_reservation(
    connection: Connection, row: UsageRow, changes: Sequence[CounterChange], *, until: datetime
) -> None:
    """Store what a turn's request has reserved with the turn's usage, which is `row` if there is none yet."""
    reserved = {"reserved": encode_changes(changes), "reserved_until": until}
    await connection.execute(
        insert_on_conflict(usage, connection.dialect.name)
        .values(**usage_values(row), **reserved)
        .on_conflict_do_update(index_elements=["id"], set_=reserved)
    )


async def take_reservation(connection: Connection, turn: str, until: datetime) -> bool:
    """End a reservation that lasts until a moment; returns False if it ended before."""
    changed = await connection.execute(
        update(usage)
        .where(usage.c.id == turn, usage.c.reserved_until == until)
        .values(reserved=None, reserved_until=None)
    )
    return changed.rowcount > 0


def encode_changes(changes: Sequence[CounterChange]) -> list[list[Any]]:
    """Return changes as they are stored with the usage of a turn."""
    return [
        [one.owner, one.period, one.kind, one.reserved, one.ceiling, one.ends_at.isoformat()]
        for one in changes
    ]


def decode_changes(stored: Sequence[Sequence[Any]] | None) -> list[CounterChange]:
    """Return the stored changes."""
    return [
        CounterChange(
            owner=owner,
            period=period,
            kind=BudgetKind(kind),
            reserved=reserved,
            ceiling=ceiling,
            ends_at=datetime.fromisoformat(ends_at),
        )
        for owner, period, kind, reserved, ceiling, ends_at in stored or ()
    ]


def _counter(row: Row[Any]) -> BudgetCounter:
    return BudgetCounter(
        owner=row.owner,
        period=row.period,
        kind=BudgetKind(row.kind),
        used=row.used,
        reserved=row.reserved,
        ceiling=row.ceiling,
        warned=row.warned,
        ends_at=row.ends_at,
    )
