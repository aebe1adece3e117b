"""CORS: pages of the origins in `allowed_origins` may use the HTTP API from a browser.

No response allows credentials: a page sends its key in the `Authorization` header, never a cookie.
"""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from gateway.web.http.context import WebContext
from gateway.web.http.problems import Handler

METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
EXPOSED = (
    "Content-Disposition, Content-Range, ETag, Location, RateLimit, RateLimit-Policy, Retry-After, "
    "X-Request-Id, x-vercel-ai-ui-message-stream"
)
"""Headers that a page may read besides those that every browser allows."""

MAX_AGE_SECONDS = 600
_MAX_HEADERS_LENGTH = 1000


def middleware(context: WebContext) -> Middleware:
    """Return the aiohttp middleware that answers preflight requests of listed origins."""

    @web.middleware
    async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _is_preflight(request) or listed_origin(request, context) is None:
            return await handler(request)
        return web.Response(
            status=HTTPStatus.NO_CONTENT,
            headers={
                hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
                hdrs.ACCESS_CONTROL_ALLOW_HEADERS: _allowed_headers(request),
                hdrs.ACCESS_CONTROL_MAX_AGE: str(MAX_AGE_SECONDS),
            },
        )

    return answer_preflight


def set_headers(request: web.Request, response: web.StreamResponse, context: WebContext) -> None:
    """Let a page of a listed origin read the response, whatever its status."""
    if not context.allowed_origins:
        return
    response.headers.add(hdrs.VARY, hdrs.ORIGIN)
    origin = listed_origin(request, context)
    if origin is not None:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED


def listed_origin(request: web.Request, context: WebContext) -> str | None:
    """Return the request's only Origin if it is in `allowed_origins`."""
    origins = request.headers.getall(hdrs.ORIGIN, [])
    return origins[0] if len(origins) == 1 and origins[0] in context.allowed_origins else None


def _is_preflight(request: web.Request) -> bool:
    return request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers


def _allowed_headers(request: web.Request) -> str:
    """Return the header names that the page wants to send; SDKs send headers of their own."""
    wanted = ", ".join(request.headers.getall(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, []))
    names = [name.strip() for name in wanted[:_MAX_HEADERS_LENGTH].split(",")]
    return ", ".join(name for name in names if name and name.replace("-", "").replace("_", "").isalnum())
