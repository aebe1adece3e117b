"""Server-sent events with JSON, and the response that carries them to their end or to an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from aiohttp import web

from delivery.database.engine import DatabaseUnavailable
from delivery.errors import DeliveryError
from gateway.web.http.problems import HttpProblem
from gateway.web.stream.event_stream import has_events, open_event_stream
from gateway.web.stream.frames import encode_json
from gateway.web.stream.send_buffer import SLOW_AFTER_SECONDS


class ClientGone(Exception):
    """The client disconnected or does not read; the turn continues."""


class SseWriter:
    """Writes server-sent events with JSON in `data:` lines."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    async def send(self, shape: dict[str, Any], *, event: str | None = None) -> None:
        """Send one event; raises ClientGone."""
        name = f"event: {event}\n".encode() if event else b""
        await self._write(b"%bdata: %b\n\n" % (name, encode_json(shape)))

    async def heartbeat(self) -> None:
        """Send a heartbeat; raises ClientGone."""
        await self.comment("")

    async def comment(self, text: str) -> None:
        """Send a comment, on one line; clients that parse events ignore it; raises ClientGone."""
        await self._write(f": {' '.join(text.split())}\n\n".encode("utf-8", "replace"))

    async def send_done(self) -> None:
        """Send the mark of a stream's end; raises ClientGone."""
        await self._write(b"data: [DONE]\n\n")

    async def _write(self, raw: bytes) -> None:
        try:
            async with asyncio.timeout(2 * SLOW_AFTER_SECONDS):
                await self._response.write(raw)
        except (ConnectionError, TimeoutError):
            raise ClientGone from None


async def stream_sse(
    request: web.Request,
    write: Callable[[SseWriter], Awaitable[None]],
    render_error: Callable[[HttpProblem], dict[str, Any]],
    *,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> web.StreamResponse:
    """Stream what the writer function sends; an error after the start becomes the last event."""
    response = await open_event_stream(request, headers)
    if not has_events(request):
        return response
    sent = SseWriter(response)
    with suppress(ClientGone):
        try:
            await write(sent)
        except HttpProblem as problem:
            await sent.send(render_error(problem))
        except (DeliveryError, DatabaseUnavailable):
            await sent.send(render_error(HttpProblem(503, "NATS or the database does not answer")))
    return response
