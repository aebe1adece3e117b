"""The web application: routes behind one door, problems for everything that goes wrong."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from gateway.web.admin import audit
from gateway.web.api import job_completion
from gateway.web.http import request_metrics
from gateway.web.http.auth import RATE, Door, Public
from gateway.web.http.context import Surface
from gateway.web.http.problems import answer_problems
from gateway.web.http.route import DOOR, SURFACE, Route, endpoint
from gateway.web.routes import ROUTES
from gateway.web.stream import handlers


def build(surface: Surface) -> web.Application:
    """Return the gateway's whole public face."""
    application = assemble(surface, ROUTES)
    handlers.install(application, surface)
    return application


def build_callbacks(surface: Surface) -> web.Application:
    """Return what the callback socket serves: the end of jobs and nothing else."""
    return assemble(surface, job_completion.ROUTES)


def assemble(surface: Surface, routes: Iterable[Route]) -> web.Application:
    """Return an application of these routes."""
    door = Door.of(surface)
    application = web.Application(
        middlewares=[
            request_metrics.middleware(surface.answered),
            answer_problems,
            audit.middleware(surface, door),
            door.middleware(),
        ],
        client_max_size=surface.bounds.body_bytes,
        handler_args={
            "keepalive_timeout": surface.bounds.header_deadline,
            "lingering_time": 1.0,
            "auto_decompress": False,
        },
    )
    application.on_response_prepare.append(_say_little)
    application[SURFACE] = surface
    application[DOOR] = door
    for route in routes:
        _mount(application, door, route)
    return application


async def _say_little(request: web.Request, response: web.StreamResponse) -> None:
    """Name no versions of what we are made of; tell the asker what is left of its minute."""
    response.headers["Server"] = "dovecote"
    standing = request.get(RATE)
    if standing is not None:
        response.headers.update(standing.headers())
    response.headers.setdefault("X-Content-Type-Options", "nosniff")


def _mount(application: web.Application, door: Door, route: Route) -> None:
    handler = endpoint(route)
    made = application.router.add_route(route.method, route.path, handler)
    door.markers[made] = route.access
    if route.method == "GET" and isinstance(route.access, Public):
        door.markers[application.router.add_route("HEAD", route.path, handler)] = route.access
