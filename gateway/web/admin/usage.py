"""An account's usage and budget over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from delivery.database.clock import utc_now
from gateway.accounts.budgets import usage_by_agent
from gateway.store.accounts import budgets
from gateway.store.accounts import usage as store
from gateway.store.accounts.budgets import MICROS, BudgetCounter, BudgetKind, PeriodName
from gateway.store.accounts.usage import Amount, UsageKind
from gateway.web.admin.operator_accounts import require_account
from gateway.web.api.persons import BudgetCost, BudgetCount, PeriodBudget
from gateway.web.http.auth import AdminAccess, KeyAccess
from gateway.web.http.preconditions import ensure_preconditions
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel


class UsageAmountResponse(ResponseModel):
    """Amounts used; `cost` is in the currency of the configured prices."""

    sandbox_seconds: float
    requests: int
    input_tokens: int
    output_tokens: int
    cost: float


class UsagePartResponse(UsageAmountResponse):
    """The usage of one model or provider, for one purpose."""

    kind: UsageKind
    what: str
    reason: str


class BudgetUpdate(RequestModel):
    """An account's budget in total, per day and per month; 0 means no limit."""

    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    requests: BudgetCount = 0
    tokens: BudgetCount = 0
    cost: BudgetCost = 0.0
    day: PeriodBudget = PeriodBudget()
    month: PeriodBudget = PeriodBudget()


class PersonBudgetsUpdate(RequestModel):
    """What each person may use per day and per month, unless the person has a budget; 0 means no limit."""

    person_day: PeriodBudget = PeriodBudget()
    person_month: PeriodBudget = PeriodBudget()


class BudgetResponse(ResponseModel):
    """An account's budget, and what each of its people may use; 0 means no limit."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    cost: float = 0.0
    day: PeriodBudget = PeriodBudget()
    month: PeriodBudget = PeriodBudget()
    person_day: PeriodBudget = PeriodBudget()
    person_month: PeriodBudget = PeriodBudget()


class BudgetUseResponse(ResponseModel):
    """How much of a budget is used in the present day or month, and reserved by running requests.

    `owner` is an agent's id, a person's key, or empty for the account.
    """

    owner: str
    period: Literal["day", "month"]
    kind: Literal["requests", "tokens", "cost"]
    limit: float
    used: float
    reserved: float
    ends_at: datetime


class UsageResponse(ResponseModel):
    """An account's usage, including running sandboxes; `parts` are the ended ones.

    `budgets` are those of the present day and month that were used. `deleted_agents` are the names of
    deleted agents by their ids.
    """

    total: UsageAmountResponse
    agents: dict[str, UsageAmountResponse]
    deleted_agents: dict[str, str]
    parts: list[UsagePartResponse]
    budget: BudgetResponse
    budgets: list[BudgetUseResponse]


def _to_response(amount: Amount) -> UsageAmountResponse:
    return UsageAmountResponse(
        sandbox_seconds=round(amount.seconds, 3),
        requests=amount.requests,
        input_tokens=amount.input_tokens,
        output_tokens=amount.output_tokens,
        cost=amount.micros / MICROS,
    )


def _to_use(counter: BudgetCounter) -> BudgetUseResponse:
    unit = MICROS if counter.kind is BudgetKind.COST else 1
    return BudgetUseResponse(
        owner=counter.owner,
        period="day" if counter.period_name is PeriodName.DAY else "month",
        kind=counter.kind.value,
        limit=counter.ceiling / unit,
        used=counter.used / unit,
        reserved=counter.reserved / unit,
        ends_at=counter.ends_at,
    )


async def get_usage(call: ApiCall[NoContent, NoContent]) -> UsageResponse:
    """Return the usage of the request's account."""
    return await _usage(call, call.account)


async def get_account_usage(call: ApiCall[NoContent, NoContent]) -> UsageResponse:
    """Return the usage of an account, for the operator."""
    return await _usage(call, (await require_account(call)).id)


async def _usage(call: ApiCall[NoContent, NoContent], account: str) -> UsageResponse:
    async with call.context.database.read() as connection:
        found = await usage_by_agent(connection, account, utc_now())
        parts = await store.sum_by_reason(connection, account)
        deleted = await store.deleted_names(connection, account)
        limits = await budgets.get_limits(connection, account)
        counters = await budgets.list_counters(connection, account, now=utc_now())
    used = {agent: amount for agent, amount in found.items() if amount != Amount() or agent not in deleted}
    return UsageResponse(
        total=_to_response(sum(used.values(), Amount())),
        agents={agent: _to_response(amount) for agent, amount in used.items()},
        deleted_agents=deleted,
        parts=[
            UsagePartResponse(kind=kind, what=what, reason=reason, **_to_response(amount).model_dump())
            for kind, what, reason, amount in parts
            if amount != Amount()
        ],
        budget=BudgetResponse.model_validate(dict(limits.budgets)),
        budgets=[_to_use(counter) for counter in counters],
    )


async def get_own_budget(call: ApiCall[NoContent, NoContent]) -> BudgetResponse:
    """Return the budget of the request's account."""
    return await _budget(call, call.account)


async def get_budget(call: ApiCall[NoContent, NoContent]) -> BudgetResponse:
    """Return an account's budget, for the operator."""
    return await _budget(call, (await require_account(call)).id)


async def _budget(call: ApiCall[NoContent, NoContent], account: str) -> BudgetResponse:
    async with call.context.database.read() as connection:
        return BudgetResponse.model_validate(dict((await budgets.get_limits(connection, account)).budgets))


async def set_budget(call: ApiCall[BudgetUpdate, NoContent]) -> BudgetResponse:
    """Set an account's budget, for the operator."""
    return await _change_budget(call, (await require_account(call)).id)


async def set_person_budgets(call: ApiCall[PersonBudgetsUpdate, NoContent]) -> BudgetResponse:
    """Set what each person of the account may use."""
    return await _change_budget(call, call.account)


async def _change_budget(
    call: ApiCall[BudgetUpdate, NoContent] | ApiCall[PersonBudgetsUpdate, NoContent], account: str
) -> BudgetResponse:
    async with call.context.database.begin() as connection:
        await budgets.lock(connection, account)
        present = (await budgets.get_limits(connection, account)).budgets
        ensure_preconditions(call.request, BudgetResponse.model_validate(dict(present)))
        limits = {**present, **call.body.model_dump()}
        await budgets.set_budget(connection, account, limits)
    return BudgetResponse.model_validate(limits)


ROUTES = (
    ApiRoute(
        method="GET",
        path="/accounts/me/usage",
        access=KeyAccess("read"),
        handler=get_usage,
        summary="show the account's usage and budget",
        response_model=UsageResponse,
        tag="usage",
    ),
    ApiRoute(
        method="GET",
        path="/accounts/me/budget",
        access=KeyAccess("read"),
        handler=get_own_budget,
        summary="show the account's budget",
        response_model=BudgetResponse,
        versioned=True,
        tag="usage",
    ),
    ApiRoute(
        method="PUT",
        path="/accounts/me/budget",
        access=KeyAccess("admin"),
        handler=set_person_budgets,
        summary="set what each person of the account may use per day and per month",
        request_model=PersonBudgetsUpdate,
        response_model=BudgetResponse,
        versioned=True,
        tag="usage",
    ),
    ApiRoute(
        method="GET",
        path="/accounts/{id}/usage",
        access=AdminAccess(),
        handler=get_account_usage,
        summary="show an account's usage and budget",
        response_model=UsageResponse,
        tag="usage",
    ),
    ApiRoute(
        method="GET",
        path="/accounts/{id}/budget",
        access=AdminAccess(),
        handler=get_budget,
        summary="show an account's budget",
        response_model=BudgetResponse,
        versioned=True,
        tag="usage",
    ),
    ApiRoute(
        method="PUT",
        path="/accounts/{id}/budget",
        access=AdminAccess(),
        handler=set_budget,
        summary="set an account's budget",
        request_model=BudgetUpdate,
        response_model=BudgetResponse,
        versioned=True,
        tag="usage",
    ),
)
"""The routes of this module."""
