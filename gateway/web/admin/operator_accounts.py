"""Accounts for the operator: list, show, delete, and create a key for one that lost its own."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gateway.accounts import api_keys
from gateway.store.accounts import accounts as store
from gateway.store.accounts.accounts import Account
from gateway.web.admin.accounts import KeyCreate, KeyCreated, delete_everything, key_to_response
from gateway.web.http.auth import OPERATED_ACCOUNT, AdminAccess
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, ResponseModel


class OperatorAccountResponse(ResponseModel):
    """An account for the operator."""

    id: str
    name: str
    created_at: datetime


def _to_response(account: Account) -> OperatorAccountResponse:
    return OperatorAccountResponse(id=account.id, name=account.name, created_at=account.created_at)


async def list_accounts(call: ApiCall[NoContent, PageQuery]) -> ListPage[OperatorAccountResponse]:
    """List the accounts, oldest first."""
    async with call.context.database.read() as connection:
        found = await store.list_accounts(connection, after=call.query.after, limit=call.query.limit + 1)
    page, following = paginate(found, call.query.limit)
    return ListPage[OperatorAccountResponse](
        items=[_to_response(account) for account in page], next=following
    )


async def get_account(call: ApiCall[NoContent, NoContent]) -> OperatorAccountResponse:
    """Return an account."""
    return _to_response(await require_account(call))


async def delete_account(call: ApiCall[NoContent, NoContent]) -> None:
    """Delete an account with all its data."""
    await delete_everything(call.context, (await require_account(call)).id)


async def create_key(call: ApiCall[KeyCreate, NoContent]) -> KeyCreated:
    """Create a key for an account."""
    account = await require_account(call)
    async with call.context.database.begin() as connection:
        key, text = await api_keys.create_key(
            connection, account.id, name=call.body.name, scopes=call.body.scopes
        )
    return KeyCreated(**key_to_response(key).model_dump(), key=text)


async def require_account(call: ApiCall[Any, Any]) -> Account:
    """Return the account with the id or name in the path; 404 when there is none."""
    named = call.path["id"]
    async with call.context.database.read() as connection:
        found = await store.get_account(connection, account_id=named)
        found = found or await store.get_account(connection, name=named)
    if found is None:
        raise not_found("there is no such account")
    call.request[OPERATED_ACCOUNT] = found.id
    return found


ROUTES = (
    ApiRoute(
        method="GET",
        path="/accounts",
        access=AdminAccess(),
        handler=list_accounts,
        summary="list the accounts",
        query_model=PageQuery,
        response_model=ListPage[OperatorAccountResponse],
        tag="accounts",
    ),
    ApiRoute(
        method="GET",
        path="/accounts/{id}",
        access=AdminAccess(),
        handler=get_account,
        summary="show an account",
        response_model=OperatorAccountResponse,
        tag="accounts",
    ),
    ApiRoute(
        method="DELETE",
        path="/accounts/{id}",
        access=AdminAccess(),
        handler=delete_account,
        summary="delete an account with all its data",
        status=204,
        tag="accounts",
    ),
    ApiRoute(
        method="POST",
        path="/accounts/{id}/keys",
        access=AdminAccess(),
        handler=create_key,
        summary="create a key for an account; it is returned only here",
        request_model=KeyCreate,
        response_model=KeyCreated,
        status=201,
        tag="accounts",
    ),
)
"""The operator's routes of accounts; they come after those of `/accounts/me`."""
