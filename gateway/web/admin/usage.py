"""An account's usage and budget over HTTP."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from delivery.database.clock import utc_now
from gateway.accounts.budgets import MICROS, usage_by_agent
from gateway.store.accounts import usage as store
from gateway.store.accounts.usage import Amount
from gateway.web.admin.operator_accounts import require_account
from gateway.web.http.auth import AdminAccess, KeyAccess
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

    kind: str
    what: str
    reason: str


class BudgetUpdate(RequestModel):
    """An account's budget in total; 0 means no limit."""

    seconds: Annotated[float, Field(ge=0)] = 0.0
    requests: Annotated[int, Field(ge=0, le=2**53)] = 0
    tokens: Annotated[int, Field(ge=0, le=2**53)] = 0
    cost: Annotated[float, Field(ge=0)] = 0.0


class BudgetResponse(ResponseModel):
    """An account's budget in total; 0 means no limit."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    cost: float = 0.0


class UsageResponse(ResponseModel):
    """An account's usage, including running sandboxes; `parts` are the ended ones."""

    total: UsageAmountResponse
    agents: dict[str, UsageAmountResponse]
    parts: list[UsagePartResponse]
    budget: BudgetResponse


def _to_response(amount: Amount) -> UsageAmountResponse:
    return UsageAmountResponse(
        sandbox_seconds=round(amount.seconds, 3),
        requests=amount.requests,
        input_tokens=amount.input_tokens,
        output_tokens=amount.output_tokens,
        cost=amount.micros / MICROS,
    )


async def get_usage(call: ApiCall[NoContent, NoContent]) -> UsageResponse:
    """Return the usage of the request's account."""
    return await _usage(call, call.account)


async def get_account_usage(call: ApiCall[NoContent, NoContent]) -> UsageResponse:
    """Return the usage of an account, for the operator."""
    return await _usage(call, (await require_account(call)).id)


async def _usage(call: ApiCall[NoContent, NoContent], account: str) -> UsageResponse:
    async with call.context.database.read() as connection:
        used = await usage_by_agent(connection, account, utc_now())
        parts = await store.sum_by_reason(connection, account)
        budget = await store.get_budget(connection, account)
    return UsageResponse(
        total=_to_response(sum(used.values(), Amount())),
        agents={agent: _to_response(amount) for agent, amount in used.items()},
        parts=[
            UsagePartResponse(kind=kind, what=what, reason=reason, **_to_response(amount).model_dump())
            for kind, what, reason, amount in parts
        ],
        budget=BudgetResponse.model_validate(dict(budget)),
    )


async def set_budget(call: ApiCall[BudgetUpdate, NoContent]) -> BudgetResponse:
    """Set an account's budget, for the operator."""
    limits, account = call.body.model_dump(), await require_account(call)
    async with call.context.database.begin() as connection:
        await store.set_budget(connection, account.id, limits)
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
        path="/accounts/{id}/usage",
        access=AdminAccess(),
        handler=get_account_usage,
        summary="show an account's usage and budget",
        response_model=UsageResponse,
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
        tag="usage",
    ),
)
"""The routes of this module."""
