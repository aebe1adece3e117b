"""The way out of spans: OpenTelemetry's SDK, which reads its standard OTEL_* variables itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from gateway.observability.tracing.spans import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

KINDS = {"internal": SpanKind.INTERNAL, "consumer": SpanKind.CONSUMER, "client": SpanKind.CLIENT}
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
NANOSECONDS = 1_000_000_000


class OpenTelemetryExporter:
    """Hands spans on in batches, in the background; over OTLP and HTTP unless another exporter is given."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._processor: SpanProcessor = BatchSpanProcessor(exporter or _otlp())
        named = Resource.create()
        unnamed = str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
        self._resource = named.merge(Resource({SERVICE_NAME: "dovecote"})) if unnamed else named
        self._scope = InstrumentationScope("dovecote")

    def export(self, span: Span) -> None:
        """Queue one span; returns at once."""
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=_context(span.trace, span.id),
                parent=_context(span.trace, span.parent) if span.parent else None,
                resource=self._resource,
                attributes=dict(span.attributes),
                kind=KINDS[span.kind],
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
                start_time=round(span.started_at.timestamp() * NANOSECONDS),
                end_time=round(max(span.ended_at, span.started_at).timestamp() * NANOSECONDS),
                instrumentation_scope=self._scope,
            )
        )

    def close(self) -> None:
        """Export the remaining spans; waits as long as the receiver does."""
        self._processor.shutdown()


def _otlp() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _context(trace: bytes, span: bytes) -> SpanContext:
    return SpanContext(
        trace_id=int.from_bytes(trace), span_id=int.from_bytes(span), is_remote=False, trace_flags=SAMPLED
    )
