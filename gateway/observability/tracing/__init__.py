"""Traces: one trace per message and everything it led to, built from the database."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import structlog

from sandbox.errors import install_command

if TYPE_CHECKING:
    from delivery.database.engine import Database
    from gateway.observability.tracing.span_recorder import SpanExporter, SpanRecorder

log = structlog.get_logger(__name__)

REQUIRED_MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def open_span_recorder(database: Database) -> SpanRecorder | None:
    """Return the span exporter; without OpenTelemetry's SDK a warning is logged and nothing is traced."""
    from gateway.observability.tracing.span_recorder import SpanRecorder

    if not all(_is_installed(name) for name in REQUIRED_MODULES):
        log.warning("tracing.disabled", remedy=install_command("otel"))
        return None
    return SpanRecorder(database=database, open_exporter=_open_exporter)


def _open_exporter() -> SpanExporter:
    from gateway.observability.tracing.exporter import OpenTelemetryExporter

    return OpenTelemetryExporter()


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
