"""The audit log: who changed what over HTTP, refused attempts included."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from pydantic import Field

from delivery.background import log_errors
from delivery.database.clock import utc_now
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.events.event import new_id
from gateway.store.accounts import audit_log
from gateway.store.accounts.audit_log import AuditRow
from gateway.web.http.auth import (
    OPERATED_ACCOUNT,
    PRINCIPAL,
    SAFE_METHODS,
    Access,
    AdminAccess,
    Authenticator,
    KeyAccess,
)
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import Handler, translate_error
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, ResponseModel

log = structlog.get_logger(__name__)

OPERATOR = "operator"
"""The actor of a request with the operator's key."""

MAX_WAITING = 1000
"""How many entries wait in memory while the database does not answer."""

RETRY_SECONDS = 0.5
CLOSE_SECONDS = 3.0
"""How long entries wait for the database when the process ends."""


class AuditEntryResponse(ResponseModel):
    """A request that changed something or was refused; `actor` is a key's id or `operator`.

    An account does not see the operator's `address`.
    """

    id: str
    time: datetime
    actor: str
    action: str
    object: str
    status: int
    address: str


class OperatorAuditEntryResponse(AuditEntryResponse):
    """An entry for the operator; `account` null: the request was about no account that exists."""

    account: str | None


class AuditQuery(PageQuery):
    """A page of the entries of all accounts, or of the one with this id, which may be deleted."""

    account: Annotated[str, Field(max_length=40)] | None = None


class AuditWriter:
    """Writes entries to the database. While it does not answer, they wait in memory.

    Entries that are never written, because too many wait or the process ends, go to the log.
    """

    def __init__(
        self,
        database: Database,
        *,
        retry_seconds: float = RETRY_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self._database = database
        self._retry_seconds, self._close_seconds = retry_seconds, close_seconds
        self._waiting: deque[AuditRow] = deque()
        self._retrying: asyncio.Task[None] | None = None

    async def write(self, entry: AuditRow) -> None:
        """Write an entry, now or when the database answers again."""
        self._waiting.append(entry)
        if self._retrying is not None:
            self._drop(keep=MAX_WAITING)
            return
        try:
            await self._write_waiting()
        except DatabaseUnavailable as error:
            log.warning("audit.write_delayed", error=error)
            self._start_retrying()

    async def close(self, _application: object = None) -> None:
        """Write what waits; what the database does not take goes to the log."""
        if self._retrying is not None:
            self._retrying.cancel()
            with suppress(asyncio.CancelledError):
                await self._retrying
        with suppress(TimeoutError):
            async with asyncio.timeout(self._close_seconds):
                await self._write_all()
        self._drop(keep=0)

    def _start_retrying(self) -> None:
        if self._retrying is None:
            self._retrying = asyncio.create_task(self._retry())

    async def _retry(self) -> None:
        with log_errors("audit"):
            await self._write_all()
        self._retrying = None

    async def _write_all(self) -> None:
        """Write until nothing waits."""
        while self._waiting:
            with suppress(DatabaseUnavailable):
                await self._write_waiting()
                continue
            await asyncio.sleep(self._retry_seconds)

    async def _write_waiting(self) -> None:
        """Write all entries that wait in one transaction; those of other requests may be among them."""
        entries = tuple(self._waiting)
        if not entries:
            return
        self._waiting.clear()
        try:
            async with self._database.begin() as connection:
                await audit_log.record(connection, *entries)
        except (DatabaseUnavailable, asyncio.CancelledError):
            self._waiting.extendleft(reversed(entries))
            raise
        except Exception:
            for entry in entries:
                _log_unwritten(entry)
            raise

    def _drop(self, *, keep: int) -> None:
        """Log the oldest entries in place of writing them."""
        while len(self._waiting) > keep:
            _log_unwritten(self._waiting.popleft())


def _log_unwritten(entry: AuditRow) -> None:
    log.error("audit.write_failed", **asdict(entry) | {"created_at": entry.created_at.isoformat()})


def middleware(writer: AuditWriter, authenticator: Authenticator) -> Middleware:
    """Return the aiohttp middleware that records the requests to administrative routes."""

    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        access = _access_of(request, authenticator.access_by_route)
        if request.method in SAFE_METHODS or not _is_administrative(access):
            return await handler(request)
        try:
            response = await handler(request)
        except Exception as error:
            await _record(writer, authenticator, request, translate_error(error).status, created_id="")
            raise
        await _record(writer, authenticator, request, response.status, created_id=_created_id(response))
        return response

    return record


def _access_of(request: web.Request, access_by_route: Mapping[object, Access]) -> Access | None:
    if request.match_info.http_exception is not None:
        return None
    return access_by_route.get(request.match_info.route)


def _is_administrative(access: Access | None) -> bool:
    return isinstance(access, AdminAccess) or (isinstance(access, KeyAccess) and access.scope == "admin")


def _created_id(response: web.StreamResponse) -> str:
    """Return the id of the created resource, which the path does not contain."""
    if response.status != HTTPStatus.CREATED or not isinstance(response, web.Response):
        return ""
    if not isinstance(response.body, bytes):
        return ""
    body = json.loads(response.body)
    return str(body.get("id", "")) if isinstance(body, dict) else ""


async def _record(
    writer: AuditWriter, authenticator: Authenticator, request: web.Request, status: int, *, created_id: str
) -> None:
    principal = request.get(PRINCIPAL)
    access = _access_of(request, authenticator.access_by_route)
    if principal is None and (not isinstance(access, AdminAccess) or status in (401, 429)):
        return  # failed authentications are counted, not logged
    resource = request.match_info.route.resource
    entry = AuditRow(
        id=new_id("aud"),
        account=principal.account if principal else request.get(OPERATED_ACCOUNT),
        actor=principal.key if principal else OPERATOR,
        action=f"{request.method} {resource.canonical if resource else request.path}"[:200],
        object=(created_id or request.path)[:300],
        status=status,
        address=authenticator.client_address(request)[:80],
        created_at=utc_now(),
    )
    await writer.write(entry)


async def list_entries(call: ApiCall[NoContent, PageQuery]) -> ListPage[AuditEntryResponse]:
    """Return the account's audit entries, newest first."""
    async with call.context.database.read() as connection:
        found = await audit_log.list_entries(
            connection, call.account, before=call.query.cursor, limit=call.query.limit + 1
        )
    page, following = paginate(found, call.query.limit)
    return ListPage[AuditEntryResponse](items=[_to_response(entry) for entry in page], next=following)


async def list_all_entries(
    call: ApiCall[NoContent, AuditQuery],
) -> ListPage[OperatorAuditEntryResponse]:
    """Return the entries of all accounts or of one, newest first, for the operator."""
    query = call.query
    async with call.context.database.read() as connection:
        found = await audit_log.list_entries(
            connection, query.account, before=query.cursor, limit=query.limit + 1
        )
    page, following = paginate(found, query.limit)
    items = [OperatorAuditEntryResponse(account=entry.account, **_fields(entry)) for entry in page]
    return ListPage[OperatorAuditEntryResponse](items=items, next=following)


def _to_response(entry: AuditRow) -> AuditEntryResponse:
    shown = AuditEntryResponse(**_fields(entry))
    return shown.model_copy(update={"address": ""}) if entry.actor == OPERATOR else shown


def _fields(entry: AuditRow) -> dict[str, Any]:
    """Return the fields that a response has of an entry."""
    shown = asdict(entry) | {"time": entry.created_at}
    return {name: shown[name] for name in AuditEntryResponse.model_fields}


ROUTES = (
    ApiRoute(
        method="GET",
        path="/accounts/me/audit",
        access=KeyAccess("admin"),
        handler=list_entries,
        summary="list the audit entries, newest first",
        query_model=PageQuery,
        response_model=ListPage[AuditEntryResponse],
        tag="audit",
    ),
    ApiRoute(
        method="GET",
        path="/audit",
        access=AdminAccess(),
        handler=list_all_entries,
        summary="list the audit entries of all accounts, newest first",
        query_model=AuditQuery,
        response_model=ListPage[OperatorAuditEntryResponse],
        tag="audit",
    ),
)
"""The routes of this module."""
