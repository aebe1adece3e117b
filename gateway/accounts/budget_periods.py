"""Limits of budgets: of a day or a month in the account's time zone, or in total; texts for people (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from gateway.agents.port import AgentSpec
from gateway.store.accounts.budgets import (
    ACCOUNT_OWNER,
    TOTAL_PERIOD,
    BudgetCounter,
    BudgetKind,
    CounterChange,
    PeriodName,
    to_units,
)
from gateway.store.accounts.usage import Amount

WARNING_SHARE = 0.8
"""The share of a budget from which people are warned, once in each period, or until the limit is raised."""

OUTPUT_ESTIMATE = 1_000
"""Tokens that a request is expected to be answered with, until its usage is known."""

TOTAL_KEPT = timedelta(days=31)
"""How long the counter of a total budget is kept after the last reservation; it has no usage of its own."""

PERSON_DAY = "person_day"
PERSON_MONTH = "person_month"

_NAMES = {BudgetKind.REQUESTS: "model requests", BudgetKind.TOKENS: "tokens", BudgetKind.COST: "money"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPeriod:
    """The day or the month of a moment in a time zone, or all time: its key, and where it begins and ends."""

    name: PeriodName
    key: str
    starts_at: datetime
    ends_at: datetime


def period_at(name: PeriodName, now: datetime, timezone: str) -> BudgetPeriod:
    """Return the day or the month that contains `now` in a time zone, or all time."""
    if name is PeriodName.TOTAL:
        start = datetime.min.replace(tzinfo=UTC)
        return BudgetPeriod(name=name, key=TOTAL_PERIOD, starts_at=start, ends_at=now + TOTAL_KEPT)
    zone = ZoneInfo(timezone)
    today = now.astimezone(zone).date()
    if name is PeriodName.DAY:
        first, following, key = today, today + timedelta(days=1), today.isoformat()
    else:
        first = today.replace(day=1)
        following = (first + timedelta(days=31)).replace(day=1)
        key = f"{today:%Y-%m}"
    return BudgetPeriod(
        name=name, key=key, starts_at=_midnight(first, zone), ends_at=_midnight(following, zone)
    )


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(), tzinfo=zone).astimezone(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodLimit:
    """One limit: whose, in which period, and how much of what; money in millionths."""

    owner: str
    period: PeriodName
    kind: BudgetKind
    ceiling: int


def limits_of(owner: str, period: PeriodName, budget: Mapping[str, Any] | None) -> Iterator[PeriodLimit]:
    """Yield the limits of a budget (`requests`, `tokens`, `cost`); 0 means none."""
    for kind in BudgetKind:
        amount = (budget or {}).get(kind) or 0
        ceiling = to_units(kind, amount)
        if ceiling > 0:
            yield PeriodLimit(owner=owner, period=period, kind=kind, ceiling=ceiling)


def account_limits(limits: Mapping[str, Any]) -> Iterator[PeriodLimit]:
    """Yield the limits of an account."""
    for period in (PeriodName.DAY, PeriodName.MONTH):
        yield from limits_of(ACCOUNT_OWNER, period, limits.get(period))
    yield from limits_of(ACCOUNT_OWNER, PeriodName.TOTAL, limits)


def agent_limits(agent: AgentSpec) -> Iterator[PeriodLimit]:
    """Yield the limits of an agent."""
    own = agent.limits
    day = {"requests": own.budget_day_requests, "tokens": own.budget_day_tokens, "cost": own.budget_day_cost}
    month = {
        "requests": own.budget_month_requests,
        "tokens": own.budget_month_tokens,
        "cost": own.budget_month_cost,
    }
    total = {"requests": own.budget_requests, "tokens": own.budget_tokens, "cost": own.budget_cost}
    yield from limits_of(agent.id, PeriodName.DAY, day)
    yield from limits_of(agent.id, PeriodName.MONTH, month)
    yield from limits_of(agent.id, PeriodName.TOTAL, total)


def has_person_limits(limits: Mapping[str, Any]) -> bool:
    """Return whether an account limits what each person may use."""
    shared = (limits.get(name) for name in (PERSON_DAY, PERSON_MONTH))
    return any(list(limits_of("", PeriodName.DAY, budget)) for budget in shared)


def person_limits(
    limits: Mapping[str, Any], subject: str, own: Mapping[str, Any] | None
) -> Iterator[PeriodLimit]:
    """Yield the limits of a person: the person's own, else those that the account gives to everybody."""
    shared = {PeriodName.DAY: limits.get(PERSON_DAY), PeriodName.MONTH: limits.get(PERSON_MONTH)}
    for period, budget in shared.items():
        yield from limits_of(subject, period, budget if own is None else own.get(period))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetAmount:
    """What one or more model requests take of budgets."""

    requests: int = 0
    tokens: int = 0
    micros: int = 0

    @classmethod
    def used(cls, amount: Amount) -> BudgetAmount:
        """Return what usage takes of budgets."""
        return cls(requests=amount.requests, tokens=amount.tokens, micros=amount.micros)

    def of(self, kind: BudgetKind) -> int:
        """Return the part that counts against the limits of a kind."""
        return {
            BudgetKind.REQUESTS: self.requests,
            BudgetKind.TOKENS: self.tokens,
            BudgetKind.COST: self.micros,
        }[kind]


def reservation_of(
    limits: Sequence[PeriodLimit], estimate: BudgetAmount, *, now: datetime, timezone: str
) -> list[CounterChange]:
    """Return what a request reserves in each counter, in the order in which transactions lock them."""
    periods = {name: period_at(name, now, timezone) for name in {limit.period for limit in limits}}
    return sorted(
        CounterChange(
            owner=limit.owner,
            period=periods[limit.period].key,
            kind=limit.kind,
            reserved=estimate.of(limit.kind),
            ceiling=limit.ceiling,
            ends_at=periods[limit.period].ends_at,
        )
        for limit in limits
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetNames:
    """The text that says whose budget it is: an agent by its name, and in which time zone a period ends."""

    agent: str
    agent_name: str
    timezone: str

    def owner(self, counter: BudgetCounter) -> str:
        """Return whose budget a counter belongs to."""
        if counter.owner == ACCOUNT_OWNER:
            return "this account"
        return f"agent {self.agent_name!r}" if counter.owner == self.agent else "the person who asks"

    def whose(self, counter: BudgetCounter) -> str:
        """Return the label of metrics."""
        if counter.owner == ACCOUNT_OWNER:
            return "account"
        return "agent" if counter.owner == self.agent else "person"

    def budget(self, counter: BudgetCounter) -> str:
        """Return what a counter limits, and whose it is."""
        per = "" if counter.period_name is PeriodName.TOTAL else f" per {counter.period_name}"
        return f"the budget of {_NAMES[counter.kind]}{per} of {self.owner(counter)}"

    def end(self, counter: BudgetCounter) -> str:
        """Return when a counter begins again."""
        local = counter.ends_at.astimezone(ZoneInfo(self.timezone))
        return f"{local:%Y-%m-%d %H:%M} ({self.timezone})"


def share_of(counter: BudgetCounter) -> str:
    """Return how much of a budget is used, and how much running requests have reserved.

    Of money it is only the share: people in chats read these texts, and the account alone sees its costs.
    """
    if counter.kind is BudgetKind.COST:
        used, reserved = (_percent(counter, one) for one in (counter.used, counter.reserved))
    else:
        used, reserved = f"{counter.used:,} of {counter.ceiling:,}", f"{counter.reserved:,}"
    return f"{used}, and {reserved} reserved by running requests" if counter.reserved > 0 else used


def _percent(counter: BudgetCounter, amount: int) -> str:
    return f"{100 * amount // counter.ceiling}%"


def render_share(counter: BudgetCounter, names: BudgetNames) -> str:
    """Return how much of a budget is used and when it begins again."""
    budget = names.budget(counter)
    return f"{budget[0].upper()}{budget[1:]}: {share_of(counter)}, until {names.end(counter)}."


def render_refusal(counter: BudgetCounter, names: BudgetNames) -> str:
    """Return why a model request is refused, and when the next one may begin."""
    budget, raised_by = names.budget(counter), _raised_by(names.whose(counter))
    subject = f"{budget[0].upper()}{budget[1:]}"
    if is_reserved(counter):
        return (
            f"{subject} has no room beside the running requests: {share_of(counter)}. "
            f"It may have room when they have ended; {raised_by} can raise it."
        )
    begins = "" if counter.period_name is PeriodName.TOTAL else f"It begins again at {names.end(counter)}; "
    raisable = f"{begins}{raised_by} can raise it."
    return f"{subject} is used up: {share_of(counter)}. {raisable[0].upper()}{raisable[1:]}"


def is_reserved(counter: BudgetCounter) -> bool:
    """Return whether running requests have reserved the rest of a budget, which they may give back."""
    return counter.used < counter.ceiling


def render_warning(counter: BudgetCounter, names: BudgetNames) -> str:
    """Return the warning that most of a budget, or all of it, is used."""
    budget = names.budget(counter)
    again = f"I can answer again from {names.end(counter)}."
    if counter.period_name is PeriodName.TOTAL:
        again = f"I cannot answer until it is raised; {_raised_by(names.whose(counter))} can raise it."
    if counter.used >= counter.ceiling:
        return f"All of {budget} is used: {share_of(counter)}. {again}"
    percent = _percent(counter, counter.used)
    amounts = "" if counter.kind is BudgetKind.COST else f": {share_of(counter)}"
    return f"{percent} of {budget} is used{amounts}. When all is used, {again}"


def _raised_by(whose: str) -> str:
    raisers = {
        "account": "the gateway's operator",
        "agent": "who may change the agent (limits)",
        "person": "who administers the account",
    }
    return raisers[whose]
