"""Metrics of requests, by route and never by path."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

RequestObserver = Callable[[str, str, int, float | None], None]
"""Record a response: method, route, status, and seconds (None for a stream)."""

METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})


def ignore_request(_method: str, _route: str, _status: int, _seconds: float | None) -> None:
    """Nobody counts."""


def middleware(observe: RequestObserver) -> Middleware:
    """Return the outermost middleware, which sees the final response."""

    @web.middleware
    async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.monotonic()
        response = await handler(request)
        took = time.monotonic() - started if isinstance(response, web.Response) else None
        observe(_method(request), _route(request), response.status, took)
        return response

    return counted


def _method(request: web.Request) -> str:
    return request.method if request.method in METHODS else "other"


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"
