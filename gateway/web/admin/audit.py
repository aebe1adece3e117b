"""The audit log: who changed what over HTTP, refused attempts included."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from delivery.database.clock import utc_now
from delivery.database.engine import DatabaseUnavailable
from delivery.events.event import new_id
from gateway.store.accounts import audit_log
from gateway.store.accounts.audit_log import AuditRow
from gateway.web.http.auth import PRINCIPAL, SAFE_METHODS, Access, AdminAccess, Authenticator, KeyAccess
from gateway.web.http.context import WebContext
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import Handler, translate_error
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, ResponseModel

log = structlog.get_logger(__name__)

RecordRequest = Callable[[web.Request, int, bytes], Awaitable[None]]


class AuditEntryResponse(ResponseModel):
    """A request that changed something or was refused; `actor` is a key's id or `operator`."""

    id: str
    time: datetime
    actor: str
    action: str
    object: str
    status: int
    address: str


def middleware(context: WebContext, authenticator: Authenticator) -> Middleware:
    """Return the aiohttp middleware that records the requests to administrative routes."""

    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        access = _access_of(request, authenticator.access_by_route)
        if request.method in SAFE_METHODS or not _is_administrative(access):
            return await handler(request)
        try:
            response = await handler(request)
        except Exception as error:
            await _record(context, authenticator, request, translate_error(error).status, created_id="")
            raise
        await _record(context, authenticator, request, response.status, created_id=_created_id(response))
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
    context: WebContext, authenticator: Authenticator, request: web.Request, status: int, *, created_id: str
) -> None:
    principal = request.get(PRINCIPAL)
    access = _access_of(request, authenticator.access_by_route)
    if principal is None and (not isinstance(access, AdminAccess) or status in (401, 429)):
        return  # failed authentications are counted, not logged
    resource = request.match_info.route.resource
    entry = AuditRow(
        id=new_id("aud"),
        account=principal.account if principal else None,
        actor=principal.key if principal else "operator",
        action=f"{request.method} {resource.canonical if resource else request.path}"[:200],
        object=(created_id or request.path)[:300],
        status=status,
        address=authenticator.client_address(request)[:80],
        created_at=utc_now(),
    )
    try:
        async with context.database.begin() as connection:
            await audit_log.record(connection, entry)
    except DatabaseUnavailable as error:
        about = {"actor": entry.actor, "action": entry.action, "status": status}
        log.error("audit.write_failed", **about, error=str(error))  # noqa: TRY400


async def list_entries(call: ApiCall[NoContent, PageQuery]) -> ListPage[AuditEntryResponse]:
    """Return the account's audit entries, newest first."""
    async with call.context.database.read() as connection:
        found = await audit_log.list_entries(
            connection, call.account, before=call.query.cursor, limit=call.query.limit + 1
        )
    page, following = paginate(found, call.query.limit)
    return ListPage[AuditEntryResponse](items=[_to_response(entry) for entry in page], next=following)


def _to_response(entry: AuditRow) -> AuditEntryResponse:
    return AuditEntryResponse(
        id=entry.id,
        time=entry.created_at,
        actor=entry.actor,
        action=entry.action,
        object=entry.object,
        status=entry.status,
        address=entry.address,
    )


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
)
"""One line of the URL table."""
