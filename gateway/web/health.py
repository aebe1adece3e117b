"""Is it alive, does it receive, what does it count."""

from __future__ import annotations

from aiohttp import web

from gateway.web.typed import Call, Nothing, Shown


class Alive(Shown):
    """The process answers."""

    status: str = "ok"


class Ready(Shown):
    """Whether this process does what its roles say, and what is degraded without failing it."""

    status: str
    checks: dict[str, str]
    degraded: dict[str, str]


async def alive(_call: Call[Nothing, Nothing]) -> Alive:
    """Answer, nothing more."""
    return Alive()


async def ready(call: Call[Nothing, Nothing]) -> web.Response:
    """Answer 200 when the process really receives and delivers by its roles, else 503."""
    health = await call.surface.health()
    shape = Ready(
        status="ready" if health.ready else "not ready",
        checks=dict(health.checks),
        degraded=dict(health.degraded),
    )
    return web.Response(
        status=200 if health.ready else 503,
        body=shape.model_dump_json().encode(),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


async def metrics(call: Call[Nothing, Nothing]) -> web.Response:
    """Return the counters in Prometheus' text format."""
    return web.Response(
        body=call.surface.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    )
