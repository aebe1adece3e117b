"""What an account stores and may store, over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictInt

from gateway.store.accounts import accounts
from gateway.web.admin.operator_accounts import require_account
from gateway.web.http.auth import AdminAccess, KeyAccess
from gateway.web.http.problems import HttpProblem
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel


class StorageUpdate(RequestModel):
    """The limit of an account in bytes: null is the default (`files.account_bytes`), 0 is no limit."""

    limit_bytes: Annotated[StrictInt, Field(ge=0, lt=2**63)] | None


class StorageResponse(ResponseModel):
    """What an account stores in files, workspaces, messages, jobs and agents; a limit of 0 is none."""

    used_bytes: int
    limit_bytes: int


async def get_storage(call: ApiCall[NoContent, NoContent]) -> StorageResponse:
    """Return what the request's account stores and may store."""
    return await _report(call, call.account)


async def get_account_storage(call: ApiCall[NoContent, NoContent]) -> StorageResponse:
    """Return what an account stores and may store, for the operator."""
    return await _report(call, (await require_account(call)).id)


async def set_storage(call: ApiCall[StorageUpdate, NoContent]) -> StorageResponse:
    """Set the limit of an account, for the operator."""
    account = await require_account(call)
    async with call.context.database.begin() as connection:
        await accounts.set_storage_limit(connection, account.id, call.body.limit_bytes)
    return await _report(call, account.id)


async def _report(call: ApiCall[Any, NoContent], account: str) -> StorageResponse:
    quota = call.context.storage_quota
    if quota is None:
        raise HttpProblem(503, "this process serves records only")
    report = await quota.report(account)
    return StorageResponse(used_bytes=report.used, limit_bytes=report.limit)


ROUTES = (
    ApiRoute(
        method="GET",
        path="/accounts/me/storage",
        access=KeyAccess("read"),
        handler=get_storage,
        summary="show what the account stores and may store",
        response_model=StorageResponse,
        tag="usage",
    ),
    ApiRoute(
        method="GET",
        path="/accounts/{id}/storage",
        access=AdminAccess(),
        handler=get_account_storage,
        summary="show what an account stores and may store",
        response_model=StorageResponse,
        tag="usage",
    ),
    ApiRoute(
        method="PUT",
        path="/accounts/{id}/storage",
        access=AdminAccess(),
        handler=set_storage,
        summary="set the storage limit of an account",
        request_model=StorageUpdate,
        response_model=StorageResponse,
        tag="usage",
    ),
)
"""The routes of this module."""
