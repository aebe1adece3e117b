"""The operator's view of accounts: which there are, the end of one, and a key for one that lost its own."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gateway.accounts import api_keys
from gateway.store.accounts import accounts as store
from gateway.store.accounts.accounts import Account
from gateway.web.admin.accounts import KeyMade, NewKey, erase, key_shown
from gateway.web.http.auth import Admin
from gateway.web.http.pagination import Items, Page, cut
from gateway.web.http.problems import not_found
from gateway.web.http.route import Call, Nothing, Route, Shown


class TenantShown(Shown):
    """An account, as the operator sees it."""

    id: str
    name: str
    created_at: datetime


def _shown(account: Account) -> TenantShown:
    return TenantShown(id=account.id, name=account.name, created_at=account.created_at)


async def list_accounts(call: Call[Nothing, Page]) -> Items[TenantShown]:
    """List the accounts, oldest first."""
    async with call.surface.database.read() as connection:
        found = await store.list_accounts(connection, after=call.query.after, limit=call.query.limit + 1)
    page, following = cut(found, call.query.limit)
    return Items[TenantShown](items=[_shown(account) for account in page], next=following)


async def show_account(call: Call[Nothing, Nothing]) -> TenantShown:
    """Show an account."""
    return _shown(await tenant(call))


async def remove_account(call: Call[Nothing, Nothing]) -> None:
    """Delete an account, with everything it has."""
    await erase(call.surface, (await tenant(call)).id)


async def create_key(call: Call[NewKey, Nothing]) -> KeyMade:
    """Make a key of an account."""
    account = await tenant(call)
    async with call.surface.database.begin() as connection:
        key, text = await api_keys.create_key(
            connection, account.id, name=call.body.name, scopes=call.body.scopes
        )
    return KeyMade(**key_shown(key).model_dump(), key=text)


async def tenant(call: Call[Any, Any]) -> Account:
    """Return the account that a path names by its id, else by its name."""
    named = call.path["id"]
    async with call.surface.database.read() as connection:
        found = await store.find_account(connection, account_id=named)
        found = found or await store.find_account(connection, name=named)
    if found is None:
        raise not_found("there is no such account")
    return found


ROUTES = (
    Route(
        method="GET",
        path="/accounts",
        access=Admin(),
        handler=list_accounts,
        summary="list the accounts",
        query=Page,
        gives=Items[TenantShown],
        tag="accounts",
    ),
    Route(
        method="GET",
        path="/accounts/{id}",
        access=Admin(),
        handler=show_account,
        summary="show an account",
        gives=TenantShown,
        tag="accounts",
    ),
    Route(
        method="DELETE",
        path="/accounts/{id}",
        access=Admin(),
        handler=remove_account,
        summary="delete an account, with everything it has",
        status=204,
        tag="accounts",
    ),
    Route(
        method="POST",
        path="/accounts/{id}/keys",
        access=Admin(),
        handler=create_key,
        summary="make a key of an account; told once",
        takes=NewKey,
        gives=KeyMade,
        status=201,
        tag="accounts",
    ),
)
"""What the table takes over; `/accounts/me` and below stand before it."""
