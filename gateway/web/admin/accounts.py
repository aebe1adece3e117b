"""Accounts and keys over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.api_keys import ALL_SCOPES, Scope
from gateway.records.fields import Name
from gateway.store import sandboxes
from gateway.store.accounts import accounts as store
from gateway.store.accounts import deletion, records
from gateway.store.accounts.accounts import Key
from gateway.web.api import workspace_files
from gateway.web.http.context import Surface
from gateway.web.http.pagination import Items, Page, cut
from gateway.web.http.problems import Problem, not_found
from gateway.web.http.route import Call, Nothing, Shown, Strict

EVERY_ONE = 100_000


class NewAccount(Strict):
    """An account to make."""

    name: Name


class AccountMade(Shown):
    """A new account; the key is told here and never again."""

    id: str
    name: str
    key: str


class AccountShown(Shown):
    """The account that asks, and the id of the key it asks with: what is said with it is by that author."""

    id: str
    name: str
    key: str
    created_at: datetime


Scopes = Annotated[tuple[Scope, ...], Field(min_length=1, max_length=4)]


class NewKey(Strict):
    """A key to make; without scopes it may do everything."""

    name: Name
    scopes: Scopes = ALL_SCOPES


class KeyChange(Strict):
    """What to change of a key."""

    name: Name | None = None
    scopes: Scopes | None = None


class KeyShown(Shown):
    """A key, without its text."""

    id: str
    name: str
    scopes: list[Scope]
    created_at: datetime


class KeyMade(KeyShown):
    """A new key; its text is told here and never again."""

    key: str


def key_shown(key: Key) -> KeyShown:
    """Return a key as its owner sees it."""
    return KeyShown.model_validate(
        {"id": key.id, "name": key.name, "scopes": list(key.scopes), "created_at": key.created_at}
    )


async def create_account(call: Call[NewAccount, Nothing]) -> AccountMade:
    """Make an account with its first key."""
    try:
        async with call.surface.database.begin() as connection:
            account, key = await api_keys.create_account(connection, call.body.name)
    except api_keys.Taken as error:
        raise Problem(409, str(error)) from error
    return AccountMade(id=account.id, name=account.name, key=key)


async def show_account(call: Call[Nothing, Nothing]) -> AccountShown:
    """Return the account that asks."""
    async with call.surface.database.read() as connection:
        account = await store.find_account(connection, account_id=call.account)
    if account is None:
        raise not_found("this account is gone")
    return AccountShown(
        id=account.id, name=account.name, key=call.principal.key, created_at=account.created_at
    )


async def remove_account(call: Call[Nothing, Nothing]) -> None:
    """Delete the account that asks, with everything it has."""
    await erase(call.surface, call.account)


async def erase(surface: Surface, account: str) -> None:
    """Delete an account, with everything it has."""
    async with surface.database.begin() as connection:
        spaces = await records.list_of(connection, account, "workspace")
        channels = await records.list_of(connection, account, "channel")
        boxes = await sandboxes.listed(connection, account, limit=EVERY_ONE)
        await deletion.remove_account(connection, account)
    surface.gatekeeper.cut(account)
    for channel in channels:
        await surface.channels_changed(account, channel.id)
    for space in spaces:
        await workspace_files.forget(surface, account, space.id)
    if surface.core is not None:
        await surface.core.sandboxes.release(boxes)
    await surface.account_removed(account, account)


async def create_key(call: Call[NewKey, Nothing]) -> KeyMade:
    """Make a key; it can have no scope its maker lacks."""
    _within(call, call.body.scopes)
    async with call.surface.database.begin() as connection:
        key, text = await api_keys.create_key(
            connection, call.account, name=call.body.name, scopes=call.body.scopes
        )
    return KeyMade(**key_shown(key).model_dump(), key=text)


def _within(call: Call[NewKey, Nothing] | Call[KeyChange, Nothing], scopes: tuple[Scope, ...]) -> None:
    beyond = sorted(set(scopes) - call.principal.scopes)
    if beyond:
        raise Problem(403, f"the key that asks does not have the scope {beyond[0]!r} itself")


async def list_keys(call: Call[Nothing, Page]) -> Items[KeyShown]:
    """List the account's live keys."""
    async with call.surface.database.read() as connection:
        found = await store.list_keys(
            connection, call.account, after=call.query.after, limit=call.query.limit + 1
        )
    page, following = cut(found, call.query.limit)
    return Items[KeyShown](items=[key_shown(key) for key in page], next=following)


async def show_key(call: Call[Nothing, Nothing]) -> KeyShown:
    """Return one key, without its text."""
    return key_shown(await _key(call.surface.database, call.account, call.path["id"]))


async def change_key(call: Call[KeyChange, Nothing]) -> KeyShown:
    """Rename a key or give it other scopes."""
    _within(call, call.body.scopes or ())
    key = await _key(call.surface.database, call.account, call.path["id"])
    async with call.surface.database.begin() as connection:
        await store.change_key(connection, key.id, name=call.body.name, scopes=call.body.scopes)
    call.surface.gatekeeper.forget(lambda principal: principal.key == key.id)
    return key_shown(await _key(call.surface.database, call.account, key.id))


async def revoke_key(call: Call[Nothing, Nothing]) -> None:
    """End a key; sockets it opened are closed."""
    key = await _key(call.surface.database, call.account, call.path["id"])
    await call.surface.gatekeeper.revoke(key.id)


async def _key(database: Database, account: str, id_or_name: str) -> Key:
    async with database.read() as connection:
        key = await store.find_key(connection, account, id_or_name)
    if key is None:
        raise not_found("there is no such key in this account")
    return key
