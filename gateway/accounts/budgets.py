"""Budgets: usage is recorded continuously, and a used-up budget stops the next model call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from itertools import count

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Database
from gateway.agents.port import (
    Agent,
    AgentError,
    AgentEvent,
    AgentSpec,
    Checkpoint,
    Finished,
    ModelRequestEnded,
    Tools,
    TurnInput,
    Usage,
)
from gateway.config.setting_types import PriceSettings
from gateway.observability.metrics import Metrics
from gateway.store.accounts import usage as store
from gateway.store.accounts.usage import Amount, UsageRow
from gateway.store.conversations import conversations

MICROS = 1_000_000
MAX_CACHED_ACCOUNTS = 10_000
"""Conversations whose account is kept in memory."""

OnModelRequest = Callable[[TurnInput, int, ModelRequestEnded], None]
"""Receive each finished model request with its number in the attempt; must not wait and must not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Upper limits of the total usage; 0 means no limit."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    cost: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.seconds or self.requests or self.tokens or self.cost)


def budget_problem(budget: Budget, used: Amount, *, owner: str, raised_by: str) -> str | None:
    """Return which budget is used up, by how much, and who can raise it; None if none is."""
    kinds = (
        ("sandbox seconds", budget.seconds, used.seconds),
        ("model requests", float(budget.requests), float(used.requests)),
        ("tokens", float(budget.tokens), float(used.tokens)),
        ("money", budget.cost, used.micros / MICROS),
    )
    for kind, limit, reached in kinds:
        if limit and reached >= limit:
            return (
                f"The budget of {kind} of {owner} is used up: {reached:,.6g} of {limit:,.6g}. "
                f"{raised_by} can raise it."
            )
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


class UsageMeter:
    """Records the usage of turns and checks budgets."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        prices: Mapping[str, PriceSettings],
        *,
        on_model_request: OnModelRequest | None = None,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._prices = prices
        self._on_model_request = on_model_request
        self._accounts: dict[str, str] = {}

    async def account_of(self, conversation: str) -> str:
        """Return the account of a conversation, which never changes."""
        if (known := self._accounts.get(conversation)) is not None:
            return known
        async with self._database.read() as connection:
            found = await conversations.get_by_id(connection, conversation)
        if found is None:
            raise AgentError("The conversation no longer exists.")
        if len(self._accounts) >= MAX_CACHED_ACCOUNTS:
            self._accounts.pop(next(iter(self._accounts)))
        self._accounts[conversation] = found.account
        return found.account

    async def check_budget(self, account: str, agent: AgentSpec) -> None:
        """Raise AgentError when a budget of the agent or of its account is used up."""
        limits = agent.limits
        own = Budget(
            seconds=limits.budget_seconds,
            requests=limits.budget_requests,
            tokens=limits.budget_tokens,
            cost=limits.budget_cost,
        )
        async with self._database.read() as connection:
            whole = Budget(**await store.get_budget(connection, account))
            if not own and not whole:
                return
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

    def record_request(self, turn_input: TurnInput, number: int, request: ModelRequestEnded) -> None:
        """Measure an attempt's request to its model."""
        seconds = (request.ended_at - request.started_at).total_seconds()
        outcome = "failed" if request.error else "answered"
        self._metrics.observe("model_seconds", seconds, model=turn_input.agent.models[0], outcome=outcome)
        if self._on_model_request is not None:
            self._on_model_request(turn_input, number, request)

    async def record(self, account: str, turn_input: TurnInput, usage: Usage, started: datetime) -> None:
        """Record a turn's model usage so far; idempotent."""
        if not usage.requests:
            return
        model = usage.model or turn_input.agent.models[0]
        used = UsageRow(
            id=turn_input.turn,
            account=account,
            agent=turn_input.agent.id,
            conversation=turn_input.conversation,
            kind="model",
            what=model[:200],
            reason=turn_input.trigger,
            amount=Amount(
                requests=usage.requests,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                micros=cost_in_micros(usage, self._price(turn_input.agent.models, model)),
            ),
            started_at=started,
            ended_at=utc_now(),
        )
        async with self._database.begin() as connection:
            more = await store.record(connection, used)
        self._metrics.count("tokens", more.input_tokens, model=model, direction="input")
        self._metrics.count("tokens", more.output_tokens, model=model, direction="output")
        self._metrics.count("model_requests", more.requests, model=model)
        self._metrics.count("cost", more.micros / MICROS, model=model)

    def _price(self, models: tuple[str, ...], used_model: str) -> PriceSettings | None:
        """Return the price of the model that answered; a vendor may name it more exactly than we do."""
        by_name = (name for name in models if used_model.startswith(name.partition(":")[2]))
        return self._prices.get(next(by_name, models[0]))


class MeteredAgent(Agent):
    """An agent that records each model call and stops when a budget is used up."""

    def __init__(self, inner: Agent, meter: UsageMeter) -> None:
        self._inner = inner
        self._meter = meter

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Run the turn; budgets are checked when progress is saved, which is before each model call."""
        account = await self._meter.account_of(turn_input.conversation)
        started, requests = utc_now(), count(1)
        await self._meter.check_budget(account, turn_input.agent)
        async with aclosing(self._inner.run(turn_input, tools)) as steps:
            async for step in steps:
                if isinstance(step, ModelRequestEnded):
                    self._meter.record_request(turn_input, next(requests), step)
                    continue
                if isinstance(step, Checkpoint | Finished):
                    await self._meter.record(account, turn_input, step.usage, started)
                yield step
                if isinstance(step, Checkpoint):
                    await self._meter.check_budget(account, turn_input.agent)


def with_metering(get_agent: Callable[[AgentSpec], Agent], meter: UsageMeter) -> Callable[[AgentSpec], Agent]:
    """Return a finder of agents that are metered."""
    return lambda persona: MeteredAgent(get_agent(persona), meter)
