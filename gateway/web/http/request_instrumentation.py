"""Give each request an id, log those that are refused, and count all, by route and never by path."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from delivery.events.event import new_id
from gateway.web.http.problems import REQUEST_ID

log = structlog.get_logger("dovecote.web")

RequestObserver = Callable[[str, str, int, float | None], None]
"""Record a response: method, route, status, and seconds (None for a stream)."""

METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})

AccountOf = Callable[[web.Request], str | None]
"""Return the account whose key a request has, if it has a valid one."""


def ignore_request(_method: str, _route: str, _status: int, _seconds: float | None) -> None:
    """Nobody counts."""


def middleware(observe: RequestObserver, account_of: AccountOf) -> Middleware:
    """Return the outermost middleware, which sees the final response."""

    @web.middleware
    async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.monotonic()
        request[REQUEST_ID] = new_id("req")
        response = await handler(request)
        took = time.monotonic() - started if isinstance(response, web.Response) else None
        observe(_method(request), _route(request), response.status, took)
        if response.status >= HTTPStatus.BAD_REQUEST:
            _log_refusal(request, response.status, account_of(request))
        return response

    return counted


def _log_refusal(request: web.Request, status: int, account: str | None) -> None:
    """Log an error response, unless anybody could fill the log with such requests."""
    if account is not None and status != HTTPStatus.TOO_MANY_REQUESTS:
        about = {"method": _method(request), "route": _route(request), "status": status}
        log.info("request.refused", request=request[REQUEST_ID], account=account, **about)


def _method(request: web.Request) -> str:
    return request.method if request.method in METHODS else "other"


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"
