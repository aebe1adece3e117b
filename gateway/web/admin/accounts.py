"""Accounts and keys over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from delivery.database.engine import Connection, Database
from delivery.database.lock_timeouts import run_with_lock_timeout
from gateway.accounts import api_keys
from gateway.accounts.api_keys import ALL_SCOPES
from gateway.config.setting_types import TimeZone
from gateway.config.sign_in_settings import KeyScope
from gateway.records.fields import Name
from gateway.store import sandboxes
from gateway.store.accounts import accounts as store
from gateway.store.accounts import deletion, records
from gateway.store.accounts.accounts import ApiKey
from gateway.store.accounts.records import Record
from gateway.web.admin.records import end_sign_ins
from gateway.web.api.files import workspace_files
from gateway.web.http.auth import OPERATED_ACCOUNT
from gateway.web.http.context import WebContext
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.preconditions import ensure_preconditions
from gateway.web.http.problems import HttpProblem, not_found, too_many
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel
from sandbox.lifecycle.reservations import Reservation

NO_LIMIT = 100_000


class AccountCreate(RequestModel):
    """The body that creates an account."""

    name: Name


class AccountUpdate(RequestModel):
    """The time zone in which the account's budgets begin and its conversations end; null: the operator's."""

    timezone: TimeZone | None


class AccountCreated(ResponseModel):
    """A new account; its key is returned only here."""

    id: str
    name: str
    key: str


class AccountResponse(ResponseModel):
    """The account of the request's key, the id of the key, and what it may do.

    `timezone` null: the operator's.
    """

    id: str
    name: str
    key: str
    scopes: list[KeyScope]
    timezone: str | None
    created_at: datetime


Scopes = Annotated[tuple[KeyScope, ...], Field(min_length=1, max_length=4)]


class KeyCreate(RequestModel):
    """The body that creates a key; without `scopes` it gets every scope."""

    name: Name
    scopes: Scopes = ALL_SCOPES


class KeyUpdate(RequestModel):
    """The fields of a key to change."""

    name: Name | None = None
    scopes: Scopes | None = None


class KeyResponse(ResponseModel):
    """A key, without its text; `subject`: the person who got it by signing in, `expires_at`: when it ends."""

    id: str
    name: str
    scopes: list[KeyScope]
    created_at: datetime
    expires_at: datetime | None = None
    subject: str | None = None


class KeyCreated(KeyResponse):
    """A new key; its text is returned only here."""

    key: str


def key_to_response(key: ApiKey) -> KeyResponse:
    """Return a key as its owner sees it."""
    return KeyResponse.model_validate(
        {
            "id": key.id,
            "name": key.name,
            "scopes": list(key.scopes),
            "created_at": key.created_at,
            "expires_at": key.expires_at,
            "subject": key.subject,
        }
    )


async def create_account(call: ApiCall[AccountCreate, NoContent]) -> AccountCreated:
    """Create an account with its first key."""
    try:
        async with call.context.database.begin() as connection:
            account, key = await api_keys.create_account(connection, call.body.name)
    except api_keys.AccountNameTaken as error:
        raise HttpProblem(409, str(error)) from error
    call.request[OPERATED_ACCOUNT] = account.id
    return AccountCreated(id=account.id, name=account.name, key=key)


async def get_account(
    call: ApiCall[NoContent, NoContent] | ApiCall[AccountUpdate, NoContent],
) -> AccountResponse:
    """Return the account of the request's key."""
    async with call.context.database.read() as connection:
        account = await store.get_account(connection, account_id=call.account)
    if account is None:
        raise not_found("this account was deleted")
    return AccountResponse(
        id=account.id,
        name=account.name,
        key=call.principal.key,
        scopes=[scope for scope in ALL_SCOPES if scope in call.principal.scopes],
        timezone=account.timezone,
        created_at=account.created_at,
    )


async def update_account(call: ApiCall[AccountUpdate, NoContent]) -> AccountResponse:
    """Change the time zone of the request's account."""
    async with call.context.database.begin() as connection:
        await store.set_timezone(connection, call.account, call.body.timezone)
    return await get_account(call)


async def delete_account(call: ApiCall[NoContent, NoContent]) -> None:
    """Delete the account of the request's key with all its data."""
    await delete_everything(call.context, call.account)


async def delete_everything(context: WebContext, account: str) -> None:
    """Delete an account with all its data; its chats get the ends of turns and jobs in progress."""
    if context.services is not None:
        await context.services.conversation_deletion.end_work(account)
    gone = await run_with_lock_timeout(context.database, partial(_delete_rows, context, account))
    for revoke in filter(None, gone.revocations):
        revoke()
    context.api_key_authenticator.revoke_account(account)
    for channel in gone.channels:
        await context.on_channel_changed(account, channel.id)
    for space in gone.workspaces:
        await workspace_files.delete_workspace(context, account, space.id)
    if context.services is not None:
        await context.services.sandbox_control.release(gone.reservations)
    await context.on_account_deleted(account, account)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deleted:
    """What an account had beyond the database."""

    workspaces: Sequence[Record]
    channels: Sequence[Record]
    reservations: Sequence[Reservation]
    revocations: Sequence[Callable[[], None] | None]


async def _delete_rows(context: WebContext, account: str, connection: Connection) -> _Deleted:
    await deletion.lock_account(connection, account)
    agents = await records.list_by_kind(connection, account, "agent")
    gone = _Deleted(
        workspaces=await records.list_by_kind(connection, account, "workspace"),
        channels=await records.list_by_kind(connection, account, "channel"),
        reservations=await sandboxes.list_for_account(connection, account, limit=NO_LIMIT),
        revocations=[await end_sign_ins(context, connection, one) for one in agents],
    )
    await deletion.delete_account(connection, account)
    return gone


async def create_key(call: ApiCall[KeyCreate, NoContent]) -> KeyCreated:
    """Create a key; it can only have scopes that the request's key has."""
    _check_scopes(call, call.body.scopes)
    limit = call.context.limits.records
    async with call.context.database.begin() as connection:
        if await store.count_keys(connection, call.account) >= limit:
            raise too_many("keys", limit, "record_limit")
        key, text = await api_keys.create_key(
            connection, call.account, name=call.body.name, scopes=call.body.scopes
        )
    return KeyCreated(**key_to_response(key).model_dump(), key=text)


def _check_scopes(
    call: ApiCall[KeyCreate, NoContent] | ApiCall[KeyUpdate, NoContent], scopes: tuple[KeyScope, ...]
) -> None:
    beyond = sorted(set(scopes) - call.principal.scopes)
    if beyond:
        raise HttpProblem(403, f"the request's key does not have the scope {beyond[0]!r} itself")


async def list_keys(call: ApiCall[NoContent, PageQuery]) -> ListPage[KeyResponse]:
    """List the account's live keys."""
    async with call.context.database.read() as connection:
        found = await store.list_keys(
            connection, call.account, after=call.query.after, limit=call.query.limit + 1
        )
    page, following = paginate(found, call.query.limit)
    return ListPage[KeyResponse](items=[key_to_response(key) for key in page], next=following)


async def get_key(call: ApiCall[NoContent, NoContent]) -> KeyResponse:
    """Return one key, without its text."""
    return key_to_response(await _require_key(call.context.database, call.account, call.path["id"]))


async def update_key(call: ApiCall[KeyUpdate, NoContent]) -> KeyResponse:
    """Rename a key or replace its scopes."""
    _check_scopes(call, call.body.scopes or ())
    async with call.context.database.begin() as connection:
        key = await _get_key_to_change(call, connection)
        await store.update_key(connection, key.id, name=call.body.name, scopes=call.body.scopes)
    call.context.api_key_authenticator.apply_scopes(key.id, call.body.scopes or key.scopes)
    return key_to_response(await _require_key(call.context.database, call.account, key.id))


async def revoke_key(call: ApiCall[NoContent, NoContent]) -> None:
    """Revoke a key and close the WebSockets it opened."""
    async with call.context.database.begin() as connection:
        key = await _get_key_to_change(call, connection)
        await store.revoke_key(connection, key.id)
    call.context.api_key_authenticator.discard(key.id)


async def _get_key_to_change(call: ApiCall[Any, Any], connection: Connection) -> ApiKey:
    """Return the key of the path, locked; raises for one that this request may not change."""
    key = await store.get_key(connection, call.account, call.path["id"], locked=True)
    if key is None:
        raise _unknown_key()
    ensure_preconditions(call.request, key_to_response(key))
    return key


async def _require_key(database: Database, account: str, id_or_name: str) -> ApiKey:
    async with database.read() as connection:
        key = await store.get_key(connection, account, id_or_name)
    if key is None:
        raise _unknown_key()
    return key


def _unknown_key() -> HttpProblem:
    return not_found("there is no such key in this account")
