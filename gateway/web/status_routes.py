"""The routes of health and metrics, which programs poll: they need no other part of the URL table."""

from __future__ import annotations

from gateway.web.admin import health
from gateway.web.http.route import ApiRoute
from gateway.web.http.route_table import PUBLIC, get_route

STATUS_ROUTES: tuple[ApiRoute, ...] = (
    get_route(
        "/healthz",
        PUBLIC,
        health.liveness,
        "check that the process is alive",
        response_model=health.LivenessResponse,
        tag="operations",
    ),
    get_route(
        "/readyz",
        PUBLIC,
        health.readiness,
        "check that the gateway is ready",
        query_model=health.ReadinessQuery,
        response_model=health.ReadinessResponse,
        error_responses={503: "not ready"},
        tag="operations",
    ),
    get_route(
        "/metrics",
        PUBLIC,
        health.metrics,
        "metrics for Prometheus",
        media_type="text/plain",
        tag="operations",
    ),
)
"""The routes that a gateway serves from its start."""
