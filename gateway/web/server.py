"""The web application: routes with authentication, audit log, metrics and problem responses."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.web_urldispatcher import UrlDispatcher

from gateway.web import cors
from gateway.web.admin import audit
from gateway.web.api import job_completion
from gateway.web.compression import compress_middleware
from gateway.web.http import request_instrumentation
from gateway.web.http.auth import RATE_LIMIT, Authenticator, SocketAccess, account_of
from gateway.web.http.connection import SERVER_HEADERS
from gateway.web.http.context import WebContext
from gateway.web.http.deferred_routes import DeferredRoutes
from gateway.web.http.problems import REQUEST_ID, problem_middleware
from gateway.web.http.route import AUTHENTICATOR, CONTEXT, ApiRoute, endpoint
from gateway.web.status_routes import STATUS_ROUTES
from gateway.web.stream import live_view, readers


def build(context: WebContext) -> web.Application:
    """Return the gateway's public web application.

    Its start loads the routes of health and metrics only; the first other request loads all of them.
    """
    application = assemble(context, STATUS_ROUTES)
    live_view.install(application, readers.install(application, context))
    authenticator = application[AUTHENTICATOR]
    application.router.register_resource(DeferredRoutes(lambda router: _add_routes(router, authenticator)))
    return application


def _add_routes(router: UrlDispatcher, authenticator: Authenticator) -> None:
    """Import the URL table and add its routes, except those that are served from the start."""
    from gateway.web.routes import ROUTES

    for route in ROUTES:
        if route not in STATUS_ROUTES:
            _add_route(router, authenticator, route)


def build_callbacks(context: WebContext) -> web.Application:
    """Return the application of the callback sockets, which serves job completions only.

    What is left of a refused body is not read.
    """
    return assemble(context, job_completion.ROUTES, lingering_seconds=0.0)


def assemble(
    context: WebContext, routes: Iterable[ApiRoute], *, lingering_seconds: float = 1.0
) -> web.Application:
    """Return an application of these routes."""
    authenticator = Authenticator.for_context(context)
    audit_writer = audit.AuditWriter(context.database)
    application = web.Application(
        middlewares=[
            request_instrumentation.middleware(context.observe_request, account_of),
            compress_middleware,
            problem_middleware,
            audit.middleware(audit_writer, authenticator),
            authenticator.middleware(),
            cors.middleware(context),
        ],
        client_max_size=context.limits.body_bytes,
        handler_args={
            "keepalive_timeout": context.limits.header_deadline,
            "lingering_time": lingering_seconds,
            "auto_decompress": False,
        },
    )
    application.on_response_prepare.append(_set_headers)
    application.on_cleanup.append(audit_writer.close)
    application[CONTEXT] = context
    application[AUTHENTICATOR] = authenticator
    for route in routes:
        _add_route(application.router, authenticator, route)
    return application


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Hide the server's version, and add the request's id and the headers of rate limits and CORS."""
    response.headers.update(SERVER_HEADERS)
    if REQUEST_ID in request:
        response.headers["X-Request-Id"] = request[REQUEST_ID]
    state = request.get(RATE_LIMIT)
    if state is not None:
        response.headers.update(state.headers())
    cors.set_headers(request, response, request.config_dict[CONTEXT])


def _add_route(router: UrlDispatcher, authenticator: Authenticator, route: ApiRoute) -> None:
    methods = [route.method]
    if route.method == hdrs.METH_GET and not isinstance(route.access, SocketAccess):
        methods.append(hdrs.METH_HEAD)
    handler = endpoint(route)
    for method in methods:
        made = router.add_route(method, route.path, handler, expect_handler=_continue_if_expected)
        authenticator.access_by_route[made] = route.access


async def _continue_if_expected(request: web.Request) -> None:
    """Ask for the body if the client waits for that, and ignore what else it expects (RFC 9110, 10.1.1).

    aiohttp itself replies to an unknown expectation with a 417 that is no problem response.
    """
    if request.version >= HttpVersion11 and request.headers[hdrs.EXPECT].lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
