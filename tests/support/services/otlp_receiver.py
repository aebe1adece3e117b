"""A collector of traces on loopback: OTLP over HTTP, as the protocol's specification has it."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class TraceCollector:
    """What was exported so far."""

    def __init__(self) -> None:
        self.spans: dict[bytes, Span] = {}
        self.services: set[str] = set()
        self.url = ""
        self._changed = asyncio.Condition()

    async def receive(self, request: web.Request) -> web.Response:
        """Take one batch of spans; one that comes again is the same."""
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        batch = ExportTraceServiceRequest.FromString(body)
        for of_resource in batch.resource_spans:
            self.services |= {
                one.value.string_value for one in of_resource.resource.attributes if one.key == "service.name"
            }
            for of_scope in of_resource.scope_spans:
                self.spans |= {span.span_id: span for span in of_scope.spans}
        async with self._changed:
            self._changed.notify_all()
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    def spans_named(self, name: str) -> list[Span]:
        """Return the spans of a name in the order of time."""
        found = [span for span in self.spans.values() if span.name == name]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    async def until(self, condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
        """Wait until what was exported is as it should be."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(condition)


@asynccontextmanager
async def trace_collector() -> AsyncIterator[TraceCollector]:
    """Run a collector for a test."""
    made = TraceCollector()
    application = web.Application()
    application.router.add_post("/v1/traces", made.receive)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()
