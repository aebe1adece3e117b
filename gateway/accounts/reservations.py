"""Reservations: each model request takes its share of the budgets before it begins.

A request begins only while what was used and what running requests have reserved is below each limit. So a
limit is exceeded by the last request, and by what running requests use above their estimates. The usage
replaces the reservation when the request has ended. Counters of total budgets hold reservations alone: the
totals have what was used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from gateway.accounts import persons
from gateway.accounts.budget_periods import (
    WARNING_SHARE,
    BudgetAmount,
    BudgetNames,
    PeriodLimit,
    account_limits,
    agent_limits,
    has_person_limits,
    is_reserved,
    period_at,
    person_limits,
    render_refusal,
    render_warning,
    reservation_of,
)
from gateway.agents.port import AgentError, TurnInput
from gateway.store.accounts import budgets as store
from gateway.store.accounts import usage
from gateway.store.accounts.budgets import (
    ACCOUNT_OWNER,
    TOTAL_PERIOD,
    BudgetCounter,
    BudgetLimits,
    CounterChange,
    PeriodName,
    counter_change,
)
from gateway.store.accounts.usage import Amount, UsageKind, UsageRow
from gateway.store.conversations import conversations
from gateway.store.turns import turns

EXPIRED_BATCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarning:
    """Most of a budget is used; `text` is for the conversation of the turn that used it."""

    account: str
    conversation: str
    turn: str
    counter: BudgetCounter
    whose: str
    text: str


OnBudgetWarning = Callable[[BudgetWarning], Awaitable[None]]
"""Warn people once in each period, and of a total budget once until it is raised."""


async def no_warning(_warning: BudgetWarning) -> None:
    """Warn no one."""


class BudgetUsedUp(AgentError):
    """A budget is used up, or running requests have reserved the rest; `whose` is account, agent or person.

    Retryable if it is reserved, because they may use less.
    """

    def __init__(self, counter: BudgetCounter, names: BudgetNames) -> None:
        super().__init__(render_refusal(counter, names), retryable=is_reserved(counter))
        self.whose = names.whose(counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReservation:
    """What a running request has reserved, and until when unless it ends before."""

    changes: Sequence[CounterChange]
    until: datetime
    names: BudgetNames


class BudgetReservations:
    """Reserves budgets for model requests, and gives back what was reserved."""

    def __init__(
        self,
        database: Database,
        *,
        timezone: str = "UTC",
        on_warning: OnBudgetWarning = no_warning,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._now = now
        self._timezone = timezone
        self._on_warning = on_warning

    async def find_limits(
        self, account: str, turn_input: TurnInput, limits: BudgetLimits
    ) -> list[PeriodLimit]:
        """Return the limits of the account, of the agent and of the person who asks."""
        found = [*account_limits(limits.budgets), *agent_limits(turn_input.agent)]
        if limits.has_person_budgets or has_person_limits(limits.budgets):
            async with self._database.read() as connection:
                subject = await _subject_of(connection, account, turn_input.turn)
                own = await store.get_person_budget(connection, account, subject) if subject else None
            if subject:
                found += person_limits(limits.budgets, subject, own)
        return found

    async def reserve(
        self,
        account: str,
        turn_input: TurnInput,
        limits: Sequence[PeriodLimit],
        estimate: BudgetAmount,
        *,
        timezone: str | None,
        is_first: bool,
    ) -> RequestReservation:
        """Reserve a request's share of each limit, or none of them; raises BudgetUsedUp.

        With `is_first` what an earlier attempt at the turn had reserved is given back.
        """
        now, agent = self._now(), turn_input.agent
        zone = timezone or self._timezone
        names = BudgetNames(agent=agent.id, agent_name=agent.name, timezone=zone)
        wanted = reservation_of(limits, estimate, now=now, timezone=zone)
        until = now + timedelta(seconds=2 * (agent.limits.step_timeout or 3600) * len(agent.models) + 60)
        reserved = RequestReservation(changes=wanted, until=until, names=names)
        try:
            await self._take(account, turn_input, reserved, now=now, is_first=is_first)
        except BudgetUsedUp:
            async with self._database.begin() as connection:
                await self._show_limits(connection, account, reserved, now)
            raise
        return reserved

    async def _take(
        self,
        account: str,
        turn_input: TurnInput,
        reserved: RequestReservation,
        *,
        now: datetime,
        is_first: bool,
    ) -> None:
        wanted, names = reserved.changes, reserved.names
        async with self._database.begin() as connection:
            if is_first and (left := await store.get_reservation(connection, turn_input.turn)):
                await self._give_back(connection, account, left)
            changed = await store.change_counters(connection, account, wanted, only_below=True)
            if len(changed) < len(wanted):
                refused = await _first_refused(connection, account, wanted, changed)
                raise BudgetUsedUp(refused, names)
            if full := await _full_total(connection, account, wanted, changed):
                raise BudgetUsedUp(full, names)
            for counter in await self._add_earlier(connection, account, changed, names, now):
                if counter.used >= counter.ceiling:
                    raise BudgetUsedUp(replace(counter, reserved=0), names)
            row = new_usage(account, turn_input, now)
            await store.set_reservation(connection, row, wanted, until=reserved.until)

    async def _show_limits(
        self, connection: Connection, account: str, refused: RequestReservation, now: datetime
    ) -> None:
        """Store the limits that a request was refused under, and what was used of those that begin."""
        await store.update_limits(connection, account, refused.changes)
        unreserved = [replace(one, reserved=0) for one in refused.changes]
        begun = await store.change_counters(connection, account, unreserved, only_below=False)
        await self._add_earlier(connection, account, begun, refused.names, now)

    @staticmethod
    async def _add_earlier(
        connection: Connection,
        account: str,
        changed: Sequence[BudgetCounter],
        names: BudgetNames,
        now: datetime,
    ) -> list[BudgetCounter]:
        """Add what was used before a limit was set to the counters that begin, and return these counters."""
        begun = []
        for counter in changed:
            if counter.used or names.whose(counter) == "person" or counter.period_name is PeriodName.TOTAL:
                continue
            earlier = await count_earlier(connection, account, counter, timezone=names.timezone, now=now)
            if earlier.used:
                change = counter_change(counter, used=earlier.used)
                await store.change_counters(connection, account, [change], only_below=False)
                begun.append(earlier)
        return begun

    async def settle(
        self,
        connection: Connection,
        account: str,
        reserved: RequestReservation,
        used: BudgetAmount,
        *,
        held: bool,
    ) -> list[BudgetCounter]:
        """Replace a reservation by the usage, and return the counters of which most is used.

        `held` is False if the reservation has expired and was given back.
        """
        changes = [
            replace(
                one,
                used=0 if one.period == TOTAL_PERIOD else used.of(one.kind),
                reserved=-one.reserved if held else 0,
            )
            for one in reserved.changes
        ]
        changed = await _end_reservation(connection, account, changes)
        unwarned = await _with_totals(connection, account, [one for one in changed if not one.warned])
        return [one for one in unwarned if one.used >= one.ceiling * WARNING_SHARE]

    async def warn(
        self, account: str, turn_input: TurnInput, counters: Sequence[BudgetCounter], names: BudgetNames
    ) -> None:
        """Warn people that most of these budgets is used."""
        for counter in counters:
            await self._on_warning(
                BudgetWarning(
                    account=account,
                    conversation=turn_input.conversation,
                    turn=turn_input.turn,
                    counter=counter,
                    whose=names.whose(counter),
                    text=render_warning(counter, names),
                )
            )

    async def release(self, account: str, turn: str, reserved: RequestReservation) -> None:
        """Give back what a request without an answer had reserved, unless that was done."""
        async with self._database.begin() as connection:
            if await store.take_reservation(connection, turn, reserved.until):
                await self._give_back(connection, account, reserved.changes)

    async def release_expired(self) -> int:
        """Give back what requests had reserved that have not ended in time; return their number."""
        async with self._database.read() as connection:
            expired = await store.list_expired(connection, now=self._now(), limit=EXPIRED_BATCH)
        for turn, account, changes, until in expired:
            async with self._database.begin() as connection:
                if await store.take_reservation(connection, turn, until):
                    await self._give_back(connection, account, changes)
        return len(expired)

    @staticmethod
    async def _give_back(connection: Connection, account: str, changes: Sequence[CounterChange]) -> None:
        negated = [replace(one, reserved=-one.reserved) for one in changes]
        await _end_reservation(connection, account, negated)


async def _end_reservation(
    connection: Connection, account: str, changes: Sequence[CounterChange]
) -> list[BudgetCounter]:
    """Change the counters of a request that has ended; return those that still have a limit."""
    changed = await store.change_counters(connection, account, changes, only_below=False)
    limited = [one for one in changed if one.ceiling > 0]
    if len(limited) < len(changed):
        await store.delete_unlimited(connection, account)
    return limited


def new_usage(account: str, turn_input: TurnInput, now: datetime) -> UsageRow:
    """Return the usage of a turn that has used nothing yet."""
    return UsageRow(
        id=turn_input.turn,
        account=account,
        agent=turn_input.agent.id,
        conversation=turn_input.conversation,
        kind=UsageKind.MODEL,
        what=turn_input.agent.models[0][:200],
        reason=turn_input.trigger,
        amount=Amount(),
        started_at=now,
        ended_at=now,
    )


async def _subject_of(connection: Connection, account: str, turn_id: str) -> str | None:
    """Return the key of the person who asked for a turn; None outside chats."""
    turn = await turns.get(connection, account, turn_id)
    if turn is None or not turn.asker:
        return None
    conversation = await conversations.get_by_id(connection, turn.conversation)
    platform = await persons.platform_of(connection, conversation)
    return None if platform is None else await persons.subject_of(connection, account, platform, turn.asker)


async def _first_refused(
    connection: Connection,
    account: str,
    wanted: Sequence[CounterChange],
    changed: Sequence[BudgetCounter],
) -> BudgetCounter:
    """Return a counter that is full, as it is without this request."""
    done = {(one.owner, one.period, one.kind) for one in changed}
    full = next(one for one in wanted if (one.owner, one.period, one.kind) not in done)
    counter = await store.get_full_counter(connection, account, full)
    return (await _with_totals(connection, account, [counter]))[0]


async def _full_total(
    connection: Connection,
    account: str,
    wanted: Sequence[CounterChange],
    changed: Sequence[BudgetCounter],
) -> BudgetCounter | None:
    """Return a total budget without room for this request, as it is without it.

    The totals are read while the counters are locked, which requests that end change after the totals.
    """
    own = {(one.owner, one.kind): one.reserved for one in wanted if one.period == TOTAL_PERIOD}
    before = [
        replace(one, reserved=one.reserved - own[one.owner, one.kind])
        for one in changed
        if one.period_name is PeriodName.TOTAL
    ]
    found = await _with_totals(connection, account, before)
    return next((one for one in found if one.used + one.reserved >= one.ceiling), None)


async def _with_totals(
    connection: Connection, account: str, counters: Sequence[BudgetCounter]
) -> list[BudgetCounter]:
    """Return the counters, those of total budgets with what was used in all."""
    if not any(one.period_name is PeriodName.TOTAL for one in counters):
        return list(counters)
    by_agent = await usage.totals(connection, account)
    used = {**by_agent, ACCOUNT_OWNER: sum(by_agent.values(), Amount())}
    return [
        replace(one, used=BudgetAmount.used(used.get(one.owner, Amount())).of(one.kind))
        if one.period_name is PeriodName.TOTAL
        else one
        for one in counters
    ]


async def count_earlier(
    connection: Connection, account: str, counter: BudgetCounter, *, timezone: str, now: datetime
) -> BudgetCounter:
    """Return a counter that begins, with what was used in its period before it had a limit."""
    since = period_at(counter.period_name, now, timezone).starts_at
    used = await store.used_since(connection, account, owner=counter.owner, kind=counter.kind, since=since)
    return replace(counter, used=used)
