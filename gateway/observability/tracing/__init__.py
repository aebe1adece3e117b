"""Traces: one for everything a message led to, made of what the database keeps."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from delivery.database.engine import Database
    from gateway.observability.tracing.span_recorder import Follower, Out

log = structlog.get_logger(__name__)

NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def follower(database: Database) -> Follower | None:
    """Return what traces by OpenTelemetry; without its SDK that is said, and nothing is traced."""
    from gateway.observability.tracing.span_recorder import Follower

    if not all(_is_installed(name) for name in NEEDED):
        log.warning("traces.not_sent", remedy="pip install 'dovecote[otel]'")
        return None
    return Follower(database=database, opened=_exporter)


def _exporter() -> Out:
    from gateway.observability.tracing.exporter import Exporter

    return Exporter()


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
