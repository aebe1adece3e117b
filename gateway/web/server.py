"""The web application: routes with authentication, audit log, metrics and problem responses."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from gateway.web import cors
from gateway.web.admin import audit
from gateway.web.api import job_completion
from gateway.web.compression import compress_middleware
from gateway.web.http import request_metrics
from gateway.web.http.auth import RATE_LIMIT, Authenticator, PublicAccess, SignedLinkAccess
from gateway.web.http.context import WebContext
from gateway.web.http.problems import problem_middleware
from gateway.web.http.route import AUTHENTICATOR, CONTEXT, ApiRoute, endpoint
from gateway.web.routes import ROUTES
from gateway.web.stream import handlers


def build(context: WebContext) -> web.Application:
    """Return the gateway's public web application."""
    application = assemble(context, ROUTES)
    handlers.install(application, context)
    return application


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
    application = web.Application(
        middlewares=[
            request_metrics.middleware(context.observe_request),
            compress_middleware,
            problem_middleware,
            audit.middleware(context, authenticator),
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
    application[CONTEXT] = context
    application[AUTHENTICATOR] = authenticator
    for route in routes:
        _mount(application, authenticator, route)
    return application


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Hide the server's version, and add the headers of rate limits and CORS."""
    response.headers["Server"] = "dovecote"
    state = request.get(RATE_LIMIT)
    if state is not None:
        response.headers.update(state.headers())
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    cors.set_headers(request, response, request.config_dict[CONTEXT])


def _mount(application: web.Application, authenticator: Authenticator, route: ApiRoute) -> None:
    handler = endpoint(route)
    made = application.router.add_route(route.method, route.path, handler)
    authenticator.access_by_route[made] = route.access
    if route.method == "GET" and isinstance(route.access, PublicAccess | SignedLinkAccess):
        authenticator.access_by_route[application.router.add_route("HEAD", route.path, handler)] = (
            route.access
        )
