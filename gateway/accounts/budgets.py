"""Budgets: what was used is written down as it is used, and who has used it up is refused the next call."""

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
    Finished,
    Persona,
    Requested,
    Saved,
    Step,
    Tools,
    Usage,
    Work,
)
from gateway.config.setting_types import PriceSettings
from gateway.observability.metrics import Metrics
from gateway.store.accounts import usage as store
from gateway.store.accounts.usage import Amount, Used
from gateway.store.conversations import conversations

MICROS = 1_000_000

Hearing = Callable[[Work, int, Requested], None]
"""Hear of each request to a model, of an attempt's first, second, …; must not wait and must not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be used in all; 0 means any amount."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    cost: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.seconds or self.requests or self.tokens or self.cost)


def refusal(budget: Budget, used: Amount, *, whose: str, raised_by: str) -> str | None:
    """Say which budget is used up, by how much, and who can raise it; None while there is some left."""
    kinds = (
        ("sandbox seconds", budget.seconds, used.seconds),
        ("model requests", float(budget.requests), float(used.requests)),
        ("tokens", float(budget.tokens), float(used.tokens)),
        ("money", budget.cost, used.micros / MICROS),
    )
    for kind, limit, reached in kinds:
        if limit and reached >= limit:
            return (
                f"The budget of {kind} of {whose} is used up: {reached:,.6g} of {limit:,.6g}. "
                f"{raised_by} can raise it."
            )
    return None


def cost(usage: Usage, price: PriceSettings | None) -> int:
    """Return what was used in millionths: prices are for a million tokens."""
    if price is None:
        return 0
    return round(usage.input_tokens * price.input + usage.output_tokens * price.output)


async def used_by(connection: Connection, account: str, now: datetime) -> Mapping[str, Amount]:
    """Return what an account has used by agent, running sandboxes included."""
    found = dict(await store.totals(connection, account))
    for agent, seconds in (await store.running(connection, account, now)).items():
        found[agent] = found.get(agent, Amount()) + Amount(seconds=seconds)
    return found


class Meter:
    """Writes down what turns use, and judges budgets."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        prices: Mapping[str, PriceSettings],
        *,
        requested: Hearing | None = None,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._prices = prices
        self._requested = requested

    async def account_of(self, conversation: str) -> str:
        """Return the account of a conversation."""
        async with self._database.read() as connection:
            found = await conversations.by_id(connection, conversation)
        if found is None:
            raise AgentError("The conversation no longer exists.")
        return found.account

    async def check(self, account: str, persona: Persona) -> None:
        """Raise AgentError when a budget of the agent or of its account is used up."""
        limits = persona.limits
        own = Budget(
            seconds=limits.budget_seconds,
            requests=limits.budget_requests,
            tokens=limits.budget_tokens,
            cost=limits.budget_cost,
        )
        async with self._database.read() as connection:
            whole = Budget(**await store.budget_of(connection, account))
            if not own and not whole:
                return
            used = await used_by(connection, account, utc_now())
        mine, everything = used.get(persona.id, Amount()), sum(used.values(), Amount())
        by_agent = refusal(
            own, mine, whose=f"agent {persona.name!r}", raised_by="Who may change the agent (limits)"
        )
        refused = by_agent or refusal(
            whole, everything, whose="this account", raised_by="The gateway's operator"
        )
        if refused is not None:
            self._metrics.count("budget_refusals", whose="agent" if by_agent else "account")
            raise AgentError(refused)

    def requested(self, work: Work, number: int, request: Requested) -> None:
        """Measure an attempt's request to its model."""
        seconds = (request.ended - request.begun).total_seconds()
        outcome = "failed" if request.failed else "answered"
        self._metrics.observe("model_seconds", seconds, model=work.persona.models[0], outcome=outcome)
        if self._requested is not None:
            self._requested(work, number, request)

    async def note(self, account: str, work: Work, usage: Usage, started: datetime) -> None:
        """Write down what a turn has used of its model so far; repeating it adds nothing."""
        if not usage.requests:
            return
        model = usage.model or work.persona.models[0]
        used = Used(
            id=work.turn,
            account=account,
            agent=work.persona.id,
            conversation=work.conversation,
            kind="model",
            what=model[:200],
            reason=work.trigger,
            amount=Amount(
                requests=usage.requests,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                micros=cost(usage, self._price(work.persona.models, model)),
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

    def _price(self, models: tuple[str, ...], answered: str) -> PriceSettings | None:
        """Return the price of the model that answered; a vendor may name it more exactly than we do."""
        by_name = (name for name in models if answered.startswith(name.partition(":")[2]))
        return self._prices.get(next(by_name, models[0]))


class MeteredAgent(Agent):
    """An agent whose every model call is written down, and refused once a budget is used up."""

    def __init__(self, inner: Agent, meter: Meter) -> None:
        self._inner = inner
        self._meter = meter

    async def perform(self, work: Work, tools: Tools) -> AsyncGenerator[Step, None]:
        """Perform; progress is saved before each model call, which is when budgets are judged."""
        account = await self._meter.account_of(work.conversation)
        started, requests = utc_now(), count(1)
        await self._meter.check(account, work.persona)
        async with aclosing(self._inner.perform(work, tools)) as steps:
            async for step in steps:
                if isinstance(step, Requested):
                    self._meter.requested(work, next(requests), step)
                    continue
                if isinstance(step, Saved | Finished):
                    await self._meter.note(account, work, step.usage, started)
                yield step
                if isinstance(step, Saved):
                    await self._meter.check(account, work.persona)


def metered(find: Callable[[Persona], Agent], meter: Meter) -> Callable[[Persona], Agent]:
    """Return a finder of agents that are metered."""
    return lambda persona: MeteredAgent(find(persona), meter)
