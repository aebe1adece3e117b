"""The response that carries server-sent events."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from aiohttp import hdrs, web

_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


async def open_event_stream(
    request: web.Request, headers: Mapping[str, str] = MappingProxyType({})
) -> web.StreamResponse:
    """Send the headers of a stream and return its response. For a HEAD request the response is complete."""
    response = web.StreamResponse(headers={**_HEADERS, **headers})
    await response.prepare(request)
    return response


def has_events(request: web.Request) -> bool:
    """Return whether the response has events after its headers; that of a HEAD request has none."""
    return request.method != hdrs.METH_HEAD
