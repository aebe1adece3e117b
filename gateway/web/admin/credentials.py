"""Credentials over HTTP: what sandboxes may use at a host without ever seeing it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field, SecretStr

from gateway.records.credentials import CredentialKind
from gateway.records.fields import Name
from gateway.store.accounts import records as store
from gateway.store.accounts.records import Record
from gateway.web.admin.records import delete
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import HttpProblem
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel
from gateway.web.http.route_table import ADMIN, ME, READ, delete_named_route, get_route, post_new_route

MAX_CREDENTIALS = 200
"""Credentials of one account."""


class CredentialCreate(RequestModel):
    """A credential. The form of `secret` depends on the kind; `agents` may contain `*` for every agent."""

    name: Name
    host: str = Field(min_length=1, max_length=253)
    kind: CredentialKind
    secret: SecretStr | dict[str, Any]
    agents: tuple[str, ...]


class CredentialResponse(ResponseModel):
    """A credential without its secret, which is never returned."""

    id: str
    name: str
    host: str
    kind: CredentialKind
    agents: tuple[str, ...]
    managed: bool
    created_at: datetime
    updated_at: datetime


async def create(call: ApiCall[CredentialCreate, NoContent]) -> CredentialResponse:
    """Create a credential."""
    body = call.body
    secret = body.secret.get_secret_value() if isinstance(body.secret, SecretStr) else body.secret
    config = {"host": body.host, "kind": body.kind, "secret": secret, "agents": body.agents}
    async with call.context.database.begin() as connection:
        if await store.count(connection, call.account, "credential") >= MAX_CREDENTIALS:
            detail = f"the account has {MAX_CREDENTIALS} credentials, which is the limit: delete one"
            raise HttpProblem(429, detail)
        written = await call.context.records.create(
            connection, call.account, "credential", name=body.name, config=config, below=""
        )
    return _to_response(written.record)


async def list_credentials(call: ApiCall[NoContent, PageQuery]) -> ListPage[CredentialResponse]:
    """List the credentials, without their secrets."""
    async with call.context.database.read() as connection:
        found = await store.list_by_kind(
            connection, call.account, "credential", after=call.query.after, limit=call.query.limit + 1
        )
    page, following = paginate(found, call.query.limit)
    return ListPage[CredentialResponse](items=[_to_response(one) for one in page], next=following)


def _to_response(record: Record) -> CredentialResponse:
    return CredentialResponse(
        id=record.id,
        name=record.name,
        host=record.config["host"],
        kind=record.config["kind"],
        agents=tuple(record.config["agents"]),
        managed=record.managed,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )


_COLLECTION = f"{ME}/credentials"
ROUTES = (
    post_new_route(
        _COLLECTION,
        ADMIN,
        create,
        "create a credential that sandboxes use without seeing it",
        request_model=CredentialCreate,
        response_model=CredentialResponse,
    ),
    get_route(
        _COLLECTION,
        READ,
        list_credentials,
        "list the credentials, without their secrets",
        query_model=PageQuery,
        response_model=ListPage[CredentialResponse],
    ),
    delete_named_route(
        f"{_COLLECTION}/{{id}}", ADMIN, delete("credential", _to_response), "delete a credential"
    ),
)
"""The lines of the URL table."""
