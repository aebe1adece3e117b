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
from delivery.database.engine import Unavailable
from delivery.events.event import new_id
from gateway.store.accounts import audit_log
from gateway.store.accounts.audit_log import Deed
from gateway.web.http.auth import PRINCIPAL, SAFE, Access, Admin, Door, Key
from gateway.web.http.context import Surface
from gateway.web.http.pagination import Items, Page, cut
from gateway.web.http.problems import Handler, translate
from gateway.web.http.route import Call, Nothing, Route, Shown

log = structlog.get_logger(__name__)

Recording = Callable[[web.Request, int, bytes], Awaitable[None]]


class DeedShown(Shown):
    """One request that changed something, or was refused; `actor` is a key's id, or `operator`."""

    id: str
    time: datetime
    actor: str
    action: str
    object: str
    status: int
    address: str


def middleware(surface: Surface, door: Door) -> Middleware:
    """Return the aiohttp middleware that writes down what administrative routes were asked."""

    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        access = _marker(request, door.markers)
        if request.method in SAFE or not _is_administrative(access):
            return await handler(request)
        try:
            response = await handler(request)
        except Exception as error:
            await _write(surface, door, request, translate(error).status, made="")
            raise
        await _write(surface, door, request, response.status, made=_made(response))
        return response

    return record


def _marker(request: web.Request, markers: Mapping[object, Access]) -> Access | None:
    if request.match_info.http_exception is not None:
        return None
    return markers.get(request.match_info.route)


def _is_administrative(access: Access | None) -> bool:
    return isinstance(access, Admin) or (isinstance(access, Key) and access.scope == "admin")


def _made(response: web.StreamResponse) -> str:
    """Return the id of what was made, which the path does not name."""
    if response.status != HTTPStatus.CREATED or not isinstance(response, web.Response):
        return ""
    if not isinstance(response.body, bytes):
        return ""
    told = json.loads(response.body)
    return str(told.get("id", "")) if isinstance(told, dict) else ""


async def _write(surface: Surface, door: Door, request: web.Request, status: int, *, made: str) -> None:
    principal = request.get(PRINCIPAL)
    access = _marker(request, door.markers)
    if principal is None and (not isinstance(access, Admin) or status in (401, 429)):
        return  # nobody: the log of failed authentications is counted, not kept
    resource = request.match_info.route.resource
    deed = Deed(
        id=new_id("aud"),
        account=principal.account if principal else None,
        actor=principal.key if principal else "operator",
        action=f"{request.method} {resource.canonical if resource else request.path}"[:200],
        object=(made or request.path)[:300],
        status=status,
        address=door.address(request)[:80],
        created_at=utc_now(),
    )
    try:
        async with surface.database.begin() as connection:
            await audit_log.record(connection, deed)
    except Unavailable as error:
        log.error("audit.not_written", actor=deed.actor, action=deed.action, status=status, error=str(error))  # noqa: TRY400


async def show(call: Call[Nothing, Page]) -> Items[DeedShown]:
    """Return what was done with the account's keys, newest first."""
    async with call.surface.database.read() as connection:
        found = await audit_log.listed(
            connection, call.account, before=call.query.cursor, limit=call.query.limit + 1
        )
    page, following = cut(found, call.query.limit)
    return Items[DeedShown](items=[_shown(deed) for deed in page], next=following)


def _shown(deed: Deed) -> DeedShown:
    return DeedShown(
        id=deed.id,
        time=deed.created_at,
        actor=deed.actor,
        action=deed.action,
        object=deed.object,
        status=deed.status,
        address=deed.address,
    )


ROUTES = (
    Route(
        method="GET",
        path="/accounts/me/audit",
        access=Key("admin"),
        handler=show,
        summary="who changed what, newest first",
        query=Page,
        gives=Items[DeedShown],
        tag="audit",
    ),
)
"""One line of the URL table."""
