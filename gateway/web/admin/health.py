"""Liveness, readiness and metrics."""

from __future__ import annotations

from typing import Literal

from aiohttp import web
from pydantic import Field

from gateway.observability.readiness import Health
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel


class LivenessResponse(ResponseModel):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class ReadinessResponse(ResponseModel):
    """Whether this process can do the work of its roles, and what is degraded without making it unready."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str]
    degraded: dict[str, str]


async def liveness(_call: ApiCall[NoContent, NoContent]) -> LivenessResponse:
    """Return 200 while the process is alive."""
    return LivenessResponse()


class ReadinessQuery(RequestModel):
    """The checks to exclude from readiness."""

    exclude: Literal["channels"] | None = Field(
        default=None,
        description="With `channels`, channels that are not loaded yet count as degraded, not as unready.",
    )


async def readiness(call: ApiCall[NoContent, ReadinessQuery]) -> web.Response:
    """Return 200 when the process can do the work of its roles, else 503."""
    health = _excluding(await call.context.health(), call.query.exclude)
    shape = ReadinessResponse(
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


def _excluding(health: Health, check: str | None) -> Health:
    """Return the health with one check reported as degraded only."""
    found = health.checks.get(check or "", "ok")
    if found == "ok":
        return health
    checks = {name: state for name, state in health.checks.items() if name != check}
    degraded = {**health.degraded, str(check): found}
    return Health(ready=all(state == "ok" for state in checks.values()), checks=checks, degraded=degraded)


async def metrics(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Return the metrics in Prometheus' text format."""
    return web.Response(
        body=call.context.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    )
