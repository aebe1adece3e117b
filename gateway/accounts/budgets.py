"""Budgets: usage is recorded continuously, and a used-up budget stops the next model call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any

from delivery.background import log_errors
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database, ignore_deletions
from delivery.deliveries.transactions import Transaction
from gateway.accounts.budget_periods import OUTPUT_ESTIMATE, BudgetAmount, agent_limits
from gateway.accounts.reservations import BudgetReservations, BudgetUsedUp, RequestReservation, new_usage
from gateway.agents.port import (
    Agent,
    AgentError,
    AgentEvent,
    AgentSpec,
    Checkpoint,
    Finished,
    ModelRequestEnded,
    ModelRequestStarting,
    Tools,
    TurnInput,
    TurnLimits,
    Usage,
)
from gateway.config.setting_types import ENTRY_PREFIX, SHELL, PriceSettings
from gateway.observability.metrics import Metrics
from gateway.store.accounts import budgets
from gateway.store.accounts import usage as store
from gateway.store.accounts.budgets import MICROS, BudgetCounter, BudgetLimits
from gateway.store.accounts.usage import Amount, UsageRow
from gateway.store.turns.claims import ClaimedConversation

OnModelRequest = Callable[[TurnInput, int, ModelRequestEnded], None]
"""Receive each finished model request with its number in the attempt; must not wait and must not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Upper limits of the total usage; 0 means no limit."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    cost: float = 0.0

    @classmethod
    def parse(cls, limits: Mapping[str, Any]) -> Budget:
        """Return the total limits among those of an account."""
        return cls(**{one.name: limits[one.name] for one in fields(cls) if one.name in limits})

    @classmethod
    def of_agent(cls, agent: AgentSpec) -> Budget:
        """Return the total limits of an agent."""
        limits = agent.limits
        return cls(
            seconds=limits.budget_seconds,
            requests=limits.budget_requests,
            tokens=limits.budget_tokens,
            cost=limits.budget_cost,
        )

    def __bool__(self) -> bool:
        return bool(self.seconds or self.requests or self.tokens or self.cost)


def budget_problem(budget: Budget, used: Amount, *, owner: str, raised_by: str) -> str | None:
    """Return which budget is used up, by how much, and who can raise it; None if none is.

    Of money it is only the share, because people in chats read this text.
    """
    kinds = (
        ("sandbox seconds", budget.seconds, used.seconds),
        ("model requests", float(budget.requests), float(used.requests)),
        ("tokens", float(budget.tokens), float(used.tokens)),
        ("money", budget.cost, used.micros / MICROS),
    )
    for kind, limit, reached in kinds:
        if limit and reached >= limit:
            share = f"{int(100 * reached / limit)}%" if kind == "money" else f"{reached:,.6g} of {limit:,.6g}"
            return f"The budget of {kind} of {owner} is used up: {share}. {raised_by} can raise it."
    return None


def cost_in_micros(usage: Usage, price: PriceSettings | None) -> int:
    """Return the cost in millionths: prices are per million tokens."""
    if price is None:
        return 0
    return round(usage.input_tokens * price.input + usage.output_tokens * price.output)


async def usage_by_agent(connection: Connection, account: str, now: datetime) -> Mapping[str, Amount]:
    """Return an account's usage by agent, including running sandboxes."""
    found = dict(await store.totals(connection, account))
    for agent, seconds in (await store.running_seconds(connection, account, now)).items():
        found[agent] = found.get(agent, Amount()) + Amount(seconds=seconds)
    return found


PresentLimits = Callable[[Connection, AgentSpec], Awaitable[TurnLimits]]
"""Returns the limits that an agent's record has now: they can be changed while a turn runs."""


async def limits_of_turn(_connection: Connection, agent: AgentSpec) -> TurnLimits:
    """Return the limits that the turn began with."""
    return agent.limits


class UsageMeter:
    """Records the usage of turns and checks budgets."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        prices: Mapping[str, PriceSettings],
        *,
        reservations: BudgetReservations | None = None,
        on_model_request: OnModelRequest | None = None,
        present_limits: PresentLimits = limits_of_turn,
    ) -> None:
        self._database = database
        self._present_limits = present_limits
        self.reservations = reservations or BudgetReservations(database)
        self._metrics = metrics
        self._prices = prices
        self._on_model_request = on_model_request

    async def check_budget(self, account: str, agent: AgentSpec) -> tuple[BudgetLimits, AgentSpec]:
        """Return the account's limits and the agent with its present ones.

        Raises AgentError when a total budget of either is used up.
        """
        async with self._database.read() as connection:
            account_limits = await budgets.get_limits(connection, account)
            agent = replace(agent, limits=await self._present_limits(connection, agent))
            own, whole = Budget.of_agent(agent), Budget.parse(account_limits.budgets)
            if not own and not whole:
                return account_limits, agent
            used = await usage_by_agent(connection, account, utc_now())
        mine, everything = used.get(agent.id, Amount()), sum(used.values(), Amount())
        by_agent = budget_problem(
            own, mine, owner=f"agent {agent.name!r}", raised_by="Who may change the agent (limits)"
        )
        refused = by_agent or budget_problem(
            whole, everything, owner="this account", raised_by="The gateway's operator"
        )
        if refused is not None:
            self._metrics.count("budget_refusals", whose="agent" if by_agent else "account")
            raise AgentError(refused)
        return account_limits, agent

    async def reserve(
        self, account: str, turn_input: TurnInput, tokens: Callable[[], int], *, is_first: bool
    ) -> RequestReservation | None:
        """Reserve a request's share of the budgets; None where no budget is set. Raises AgentError."""
        account_limits, agent = await self.check_budget(account, turn_input.agent)
        turn_input = replace(turn_input, agent=agent)
        limits = await self.reservations.find_limits(account, turn_input, account_limits)
        if not limits:
            return None
        estimate = self._estimate(turn_input, tokens())
        try:
            return await self.reservations.reserve(
                account, turn_input, limits, estimate, timezone=account_limits.timezone, is_first=is_first
            )
        except BudgetUsedUp as error:
            if not error.retryable:
                self._metrics.count("budget_refusals", whose=error.whose)
            raise

    def _estimate(self, turn_input: TurnInput, tokens: int) -> BudgetAmount:
        models = turn_input.agent.models
        usage = Usage(input_tokens=tokens, output_tokens=OUTPUT_ESTIMATE)
        cost = cost_in_micros(usage, self._price(models, models[0]))
        return BudgetAmount(requests=1, tokens=tokens + OUTPUT_ESTIMATE, micros=cost)

    def record_request(self, turn_input: TurnInput, number: int, request: ModelRequestEnded) -> None:
        """Measure an attempt's request to its model."""
        seconds = (request.ended_at - request.started_at).total_seconds()
        outcome = "failed" if request.error else "answered"
        self._metrics.observe("model_seconds", seconds, model=turn_input.agent.models[0], outcome=outcome)
        if self._on_model_request is not None:
            self._on_model_request(turn_input, number, request)

    async def record(
        self,
        account: str,
        turn_input: TurnInput,
        usage: Usage,
        started: datetime,
        reserved: RequestReservation | None = None,
    ) -> None:
        """Record a turn's model usage so far in place of what its request had reserved; idempotent."""
        used = self._usage_row(account, turn_input, usage, started)
        full: Sequence[BudgetCounter] = ()
        async with self._database.begin() as connection:
            recorded = await store.record(connection, used)
            more = recorded.more
            if reserved is not None:
                amount = BudgetAmount.used(more)
                held = recorded.reserved_until == reserved.until
                full = await self.reservations.settle(connection, account, reserved, amount, held=held)
        self._count(used.what, more)
        if reserved is not None:
            await self.reservations.warn(account, turn_input, full, reserved.names)

    async def record_within(
        self, tx: Transaction, account: str, turn_input: TurnInput, usage: Usage, started: datetime
    ) -> None:
        """Record the usage so far of a turn that has reserved nothing, in the caller's transaction."""
        used = self._usage_row(account, turn_input, usage, started)
        recorded = await store.record(tx.connection, used)
        tx.after_commit(partial(self._count, used.what, recorded.more))

    def _usage_row(self, account: str, turn_input: TurnInput, usage: Usage, started: datetime) -> UsageRow:
        model = usage.model or turn_input.agent.models[0]
        amount = Amount(
            requests=usage.requests,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            micros=cost_in_micros(usage, self._price(turn_input.agent.models, model)),
        )
        row = new_usage(account, turn_input, started)
        return replace(row, what=model[:200], amount=amount, ended_at=utc_now())

    def _count(self, model: str, more: Amount) -> None:
        self._metrics.count("tokens", more.input_tokens, model=model, direction="input")
        self._metrics.count("tokens", more.output_tokens, model=model, direction="output")
        self._metrics.count("model_requests", more.requests, model=model)
        self._metrics.count("cost", more.micros / MICROS, model=model)

    def _price(self, models: tuple[str, ...], used_model: str) -> PriceSettings | None:
        """Return the price of the model that answered; a vendor may name it more exactly than we do."""
        by_name = (name for name in models if used_model.startswith(name.partition(":")[2]))
        return self._prices.get(next(by_name, models[0]))


class MeteredTurn:
    """The model requests of one attempt at a turn: reserved before, recorded after each.

    What has reserved nothing is recorded in the transaction that saves the turn's progress or result, and
    before the next request at the latest.
    """

    def __init__(self, meter: UsageMeter, claimed: ClaimedConversation, turn_input: TurnInput) -> None:
        self._meter = meter
        self._account = claimed.conversation.account
        self._may_skip_check = not claimed.has_budgets and not _has_budget(turn_input.agent)
        self._turn_input = turn_input
        self._started = utc_now()
        self._numbers = count(1)
        self._used = Usage()
        self._recorded = Usage()
        self._reserved: RequestReservation | None = None
        self._has_reserved = False

    async def reserve(self, tokens: Callable[[], int] = lambda: 0) -> None:
        """Reserve the next request's share of the budgets; raises AgentError if one is used up."""
        if self._reserved is not None:
            return
        await self.record()
        if self._skip_check():
            return
        self._reserved = await self._meter.reserve(
            self._account, self._turn_input, tokens, is_first=not self._has_reserved
        )
        self._has_reserved = self._has_reserved or self._reserved is not None

    async def check(self) -> None:
        """Raise AgentError if a total budget is used up."""
        if not self._skip_check():
            await self._meter.check_budget(self._account, self._turn_input.agent)

    def _skip_check(self) -> bool:
        """Return whether to skip this check: it is the first, and the claim of the turn found no budget."""
        may_skip, self._may_skip_check = self._may_skip_check, False
        return may_skip

    async def end_request(self, request: ModelRequestEnded) -> None:
        """Measure a request that has ended, and record it if it has reserved something."""
        self._meter.record_request(self._turn_input, next(self._numbers), request)
        if request.usage is not None:
            await self.add(request.usage)
        else:
            await self.release()

    async def add(self, usage: Usage) -> None:
        """Set the usage so far, and record it if its request has reserved something."""
        self._used = usage
        if self._reserved is not None:
            await self.record()

    async def record(self) -> None:
        """Record the usage so far, if it has changed."""
        if not self._is_unrecorded():
            return
        used = self._used
        await self._meter.record(self._account, self._turn_input, used, self._started, self._reserved)
        self._recorded, self._reserved = used, None

    async def record_within(self, tx: Transaction) -> None:
        """Record the usage so far in a transaction, if it has changed."""
        if self._is_unrecorded():
            used = self._used
            await self._meter.record_within(tx, self._account, self._turn_input, used, self._started)
            tx.after_commit(partial(self._set_recorded, used))

    def _is_unrecorded(self) -> bool:
        return bool(self._used.requests) and self._used != self._recorded

    def _set_recorded(self, usage: Usage) -> None:
        self._recorded = usage

    async def release(self) -> None:
        """Give back what a request has reserved that did not end."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            with log_errors("budgets", turn=self._turn_input.turn):  # it expires otherwise
                await self._meter.reservations.release(self._account, self._turn_input.turn, reserved)

    async def end(self) -> None:
        """Record what no transaction has recorded, and give back what is reserved.

        A deleted account has no usage.
        """
        await self.release()
        with log_errors("budgets", turn=self._turn_input.turn), ignore_deletions():
            await self.record()


def _has_budget(agent: AgentSpec) -> bool:
    """Return whether an agent has a budget of its own."""
    return bool(agent.limits.budget_seconds) or any(True for _limit in agent_limits(agent))


class MeteredAgent(Agent):
    """An agent that reserves and records each model request, and stops when a budget is used up.

    The built-in shell asks no model. A custom agent does not announce its requests: it reserves one at its
    start and whenever it saves its progress.
    """

    def __init__(self, inner: Agent, meter: UsageMeter, claimed: ClaimedConversation) -> None:
        self._inner = inner
        self._meter = meter
        self._claimed = claimed

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Run the turn; requests are reserved as they are announced."""
        turn = MeteredTurn(self._meter, self._claimed, turn_input)
        ensure_budget = _budget_check(turn, turn_input.agent.models[0])
        try:
            await ensure_budget()
            async with aclosing(self._inner.run(turn_input, tools)) as steps:
                async for step in steps:
                    if isinstance(step, ModelRequestStarting):
                        await turn.reserve(step.estimate_tokens)
                        continue
                    if isinstance(step, ModelRequestEnded):
                        await turn.end_request(step)
                        continue
                    if isinstance(step, Checkpoint | Finished):
                        await turn.add(step.usage)
                        step = replace(step, record_usage=turn.record_within)  # noqa: PLW2901
                    yield step
                    if isinstance(step, Checkpoint):
                        await turn.record()
                        await ensure_budget()
        finally:
            await turn.end()


def _budget_check(turn: MeteredTurn, model: str) -> Callable[[], Awaitable[None]]:
    """Return what an agent of a model checks at its start and whenever it saves its progress."""
    if model == SHELL:
        return turn.check
    return turn.reserve if model.startswith(ENTRY_PREFIX) else _announces_requests


async def _announces_requests() -> None:
    """Do nothing: the agent announces each request."""


GetMeteredAgent = Callable[[AgentSpec, ClaimedConversation], Agent]
"""Return the agent of a spec that answers in a claimed conversation."""


def with_metering(get_agent: Callable[[AgentSpec], Agent], meter: UsageMeter) -> GetMeteredAgent:
    """Return a finder of agents that are metered."""
    return lambda spec, claimed: MeteredAgent(get_agent(spec), meter, claimed)
