"""People over HTTP: who was seen on which platform, and whose identities are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StrictStr

from delivery.database.engine import Connection
from gateway.accounts.persons import CannotLink, link, unlink
from gateway.config.setting_types import MAX_BUDGET, MAX_BUDGET_COST
from gateway.store.accounts import budgets
from gateway.store.accounts import persons as store
from gateway.store.accounts.persons import Identity, Person
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.preconditions import ensure_preconditions
from gateway.web.http.problems import HttpProblem, invalid_field, not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel
from gateway.web.http.route_table import ADMIN, ME, READ, delete_route, get_route, post_route, route


class PersonLink(RequestModel):
    """The code that `/link` gave to a person in a direct chat."""

    code: Annotated[StrictStr, Field(min_length=1, max_length=40)]


BudgetCount = Annotated[int, Field(ge=0, le=MAX_BUDGET)]
BudgetCost = Annotated[float, Field(ge=0, le=MAX_BUDGET_COST, allow_inf_nan=False)]


class PeriodBudget(RequestModel):
    """A budget of a day or a month in the account's time zone; 0 means no limit."""

    requests: BudgetCount = 0
    tokens: BudgetCount = 0
    cost: BudgetCost = 0.0


class PersonBudgetUpdate(RequestModel):
    """What a person may use, in place of what the account gives to everybody; 0 means no limit."""

    day: PeriodBudget = PeriodBudget()
    month: PeriodBudget = PeriodBudget()


class IdentityResponse(ResponseModel):
    """A person's account on a platform; `id` is what notes and lists call it."""

    id: str
    platform: str
    author: str
    name: str
    created_at: datetime


class PersonResponse(ResponseModel):
    """A person with the identities that are joined; `budget` null: what the account gives to everybody."""

    id: str
    identities: tuple[IdentityResponse, ...]
    budget: PersonBudgetUpdate | None
    created_at: datetime


def _to_response(person: Person, identities: Sequence[Identity]) -> PersonResponse:
    return PersonResponse(
        id=person.id,
        identities=tuple(
            IdentityResponse(
                id=one.id,
                platform=one.platform,
                author=one.author,
                name=one.name,
                created_at=one.created_at,
            )
            for one in identities
            if one.person == person.id
        ),
        budget=None if person.budget is None else PersonBudgetUpdate.model_validate(dict(person.budget)),
        created_at=person.created_at,
    )


async def list_persons(call: ApiCall[NoContent, PageQuery]) -> ListPage[PersonResponse]:
    """List the people of the account in the order in which they were first seen."""
    async with call.context.database.read() as connection:
        found = await store.list_after(
            connection, call.account, after=call.query.after, limit=call.query.limit + 1
        )
        page, following = paginate(found, call.query.limit)
        identities = await store.list_identities(connection, [one.id for one in page])
    return ListPage[PersonResponse](items=[_to_response(one, identities) for one in page], next=following)


async def link_person(call: ApiCall[PersonLink, NoContent]) -> PersonResponse:
    """Join a person to the one who got a code, and return that one with all identities."""
    async with call.context.database.begin() as connection:
        if await store.get(connection, call.account, call.path["id"]) is None:
            raise _unknown()
        try:
            person = await link(connection, call.account, call.path["id"], call.body.code)
        except CannotLink as error:
            raise HttpProblem(409, str(error)) from None
        if person is None:
            raise invalid_field("/code", "this code is wrong, was used, or has expired")
        return _to_response(person, await store.list_identities(connection, [person.id]))


async def unlink_identity(call: ApiCall[NoContent, NoContent]) -> None:
    """Make an identity a person of its own; notes and files stay with the person."""
    async with call.context.database.begin() as connection:
        person = await store.get(connection, call.account, call.path["id"])
        try:
            own = None if person is None else await unlink(connection, person, call.path["identity"])
        except CannotLink as error:
            raise HttpProblem(409, str(error)) from None
    if own is None:
        raise _unknown()


async def get_person_budget(call: ApiCall[NoContent, NoContent]) -> PersonResponse:
    """Return a person with the budget."""
    async with call.context.database.read() as connection:
        return await _show(connection, await store.get(connection, call.account, call.path["id"]))


async def set_person_budget(call: ApiCall[PersonBudgetUpdate, NoContent]) -> PersonResponse:
    """Give a person a budget of its own."""
    return await _change_budget(call, call.body.model_dump())


async def remove_person_budget(call: ApiCall[NoContent, NoContent]) -> PersonResponse:
    """Give a person what the account gives to everybody."""
    return await _change_budget(call, None)


async def _change_budget(call: ApiCall[Any, NoContent], budget: Mapping[str, Any] | None) -> PersonResponse:
    account, person = call.account, call.path["id"]
    async with call.context.database.begin() as connection:
        present = await _show(connection, await store.get(connection, account, person, locked=True))
        ensure_preconditions(call.request, present)
        await budgets.set_person_budget(connection, account, person, budget)
        return await _show(connection, await store.get(connection, account, person))


async def _show(connection: Connection, person: Person | None) -> PersonResponse:
    if person is None:
        raise _unknown()
    return _to_response(person, await store.list_identities(connection, [person.id]))


def _unknown() -> HttpProblem:
    return not_found("there is no such person or identity in this account")


_COLLECTION = f"{ME}/persons"
ROUTES: tuple[ApiRoute, ...] = (
    get_route(
        _COLLECTION,
        READ,
        list_persons,
        "list the people of the account with their identities",
        query_model=PageQuery,
        response_model=ListPage[PersonResponse],
    ),
    post_route(
        f"{_COLLECTION}/{{id}}/link",
        ADMIN,
        link_person,
        "join a person to the one who got a code from `/link`",
        request_model=PersonLink,
        response_model=PersonResponse,
        error_responses={409: "the code was given to the same person"},
    ),
    get_route(
        f"{_COLLECTION}/{{id}}/budget",
        READ,
        get_person_budget,
        "show a person with the budget",
        response_model=PersonResponse,
        versioned=True,
    ),
    route(
        "PUT",
        f"{_COLLECTION}/{{id}}/budget",
        ADMIN,
        set_person_budget,
        "set what a person may use per day and per month",
        request_model=PersonBudgetUpdate,
        response_model=PersonResponse,
        versioned=True,
    ),
    route(
        "DELETE",
        f"{_COLLECTION}/{{id}}/budget",
        ADMIN,
        remove_person_budget,
        "give a person the budget of everybody",
        response_model=PersonResponse,
        versioned=True,
    ),
    delete_route(
        f"{_COLLECTION}/{{id}}/identities/{{identity}}",
        ADMIN,
        unlink_identity,
        "make an identity a person of its own",
        error_responses={409: "it is the person's only identity"},
    ),
)
