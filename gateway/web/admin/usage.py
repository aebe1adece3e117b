"""What an account has used, over HTTP, and what it may use."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from delivery.database.clock import utc_now
from gateway.accounts.budgets import MICROS, used_by
from gateway.store.accounts import usage as store
from gateway.store.accounts.usage import Amount
from gateway.web.admin.operator_accounts import tenant
from gateway.web.http.auth import Admin, Key
from gateway.web.http.route import Call, Nothing, Route, Shown, Strict


class AmountShown(Shown):
    """How much was used; `cost` is in the currency of the configured prices."""

    sandbox_seconds: float
    requests: int
    input_tokens: int
    output_tokens: int
    cost: float


class PartShown(AmountShown):
    """What was used of one model or provider, for one reason."""

    kind: str
    what: str
    reason: str


class AccountBudget(Strict):
    """What an account may use in all; 0 means any amount."""

    seconds: Annotated[float, Field(ge=0)] = 0.0
    requests: Annotated[int, Field(ge=0, le=2**53)] = 0
    tokens: Annotated[int, Field(ge=0, le=2**53)] = 0
    cost: Annotated[float, Field(ge=0)] = 0.0


class BudgetShown(Shown):
    """What an account may use in all; 0 means any amount."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    cost: float = 0.0


class UsageShown(Shown):
    """Everything an account has used, running sandboxes included; `parts` are what has ended."""

    total: AmountShown
    agents: dict[str, AmountShown]
    parts: list[PartShown]
    budget: BudgetShown


def _shown(amount: Amount) -> AmountShown:
    return AmountShown(
        sandbox_seconds=round(amount.seconds, 3),
        requests=amount.requests,
        input_tokens=amount.input_tokens,
        output_tokens=amount.output_tokens,
        cost=amount.micros / MICROS,
    )


async def show_usage(call: Call[Nothing, Nothing]) -> UsageShown:
    """Return what the account that asks has used."""
    return await _usage(call, call.account)


async def show_usage_of(call: Call[Nothing, Nothing]) -> UsageShown:
    """Return what an account has used: the operator's to see."""
    return await _usage(call, (await tenant(call)).id)


async def _usage(call: Call[Nothing, Nothing], account: str) -> UsageShown:
    async with call.surface.database.read() as connection:
        used = await used_by(connection, account, utc_now())
        parts = await store.by_reason(connection, account)
        budget = await store.budget_of(connection, account)
    return UsageShown(
        total=_shown(sum(used.values(), Amount())),
        agents={agent: _shown(amount) for agent, amount in used.items()},
        parts=[
            PartShown(kind=kind, what=what, reason=reason, **_shown(amount).model_dump())
            for kind, what, reason, amount in parts
        ],
        budget=BudgetShown.model_validate(dict(budget)),
    )


async def set_budget(call: Call[AccountBudget, Nothing]) -> BudgetShown:
    """Say what an account may use: the operator's to do."""
    limits, account = call.body.model_dump(), await tenant(call)
    async with call.surface.database.begin() as connection:
        await store.set_budget(connection, account.id, limits)
    return BudgetShown.model_validate(limits)


ROUTES = (
    Route(
        method="GET",
        path="/accounts/me/usage",
        access=Key("read"),
        handler=show_usage,
        summary="what the account has used, and may use",
        gives=UsageShown,
        tag="usage",
    ),
    Route(
        method="GET",
        path="/accounts/{id}/usage",
        access=Admin(),
        handler=show_usage_of,
        summary="what an account has used, and may use",
        gives=UsageShown,
        tag="usage",
    ),
    Route(
        method="PUT",
        path="/accounts/{id}/budget",
        access=Admin(),
        handler=set_budget,
        summary="say what an account may use",
        takes=AccountBudget,
        gives=BudgetShown,
        tag="usage",
    ),
)
"""What the table takes over."""
