"""A conversation's events over HTTP, as server-sent events or pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field, StrictStr

from delivery.errors import DeliveryError
from delivery.events.port import StoredEvent
from delivery.events.replay import Events, Frame, Gap, Reset, Subscribed, frames
from gateway.accounts import stream_tickets
from gateway.accounts.api_keys import Principal
from gateway.web.http.problems import HttpProblem, invalid_field, not_found
from gateway.web.http.route import RequestModel, ResponseModel
from gateway.web.stream.event_stream import has_events, open_event_stream
from gateway.web.stream.frames import StreamCursor, control_frame, encode_json, parse_cursor
from gateway.web.stream.readers import StreamReader, StreamReaders
from gateway.web.stream.send_buffer import SLOW_AFTER_SECONDS
from gateway.web.stream.services import StreamServices

HEARTBEAT_SECONDS = 15.0
MAX_PAGE = 1000


class EventQuery(RequestModel):
    """The position to read from, and how."""

    after: Annotated[str, Field(max_length=64)] | None = None
    epoch: Annotated[StrictStr, Field(max_length=40)] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    deltas: bool = True
    ticket: Annotated[StrictStr, Field(max_length=stream_tickets.MAX_LENGTH)] | None = None


class EventPage(ResponseModel):
    """A page of events; `gap` and `reset` report missing ones before it. `next` is null at the live edge."""

    items: list[dict[str, Any]]
    next: int | None
    first_seq: int
    last_seq: int
    epoch: str
    gap: dict[str, Any] | None = None
    reset: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRequest:
    """A validated request for events."""

    account: str
    conversation: str
    cursor: StreamCursor | None
    deltas: bool
    limit: int


async def parse_request(
    request: web.Request, services: StreamServices, principal: Principal, id_or_name: str, query: EventQuery
) -> EventRequest:
    """Return the validated request for events; raises HttpProblem."""
    conversation = await services.find_conversation(principal, id_or_name)
    if conversation is None:
        raise not_found("there is no such conversation in this account")
    text = request.headers.get("Last-Event-ID") or query.after
    cursor = parse_cursor(text) if text is not None else None
    if text is not None and cursor is None:
        where = "header/Last-Event-ID" if "Last-Event-ID" in request.headers else "?/after"
        raise invalid_field(where, "a position is N or <epoch>-N")
    if cursor is not None and cursor.epoch is None:
        cursor = StreamCursor(cursor.seq, query.epoch)
    return EventRequest(
        account=principal.account,
        conversation=conversation,
        cursor=cursor,
        deltas=query.deltas,
        limit=query.limit,
    )


def wants_stream(request: web.Request) -> bool:
    """Return whether the request accepts server-sent events."""
    return "text/event-stream" in request.headers.get("Accept", "")


def _frames(
    services: StreamServices, event_request: EventRequest, *, cursor: StreamCursor | None, live: bool
) -> AsyncGenerator[Frame, None]:
    return frames(
        services.stream,
        event_request.conversation,
        account=event_request.account,
        after=cursor.seq if cursor else None,
        epoch=cursor.epoch if cursor else None,
        deltas=event_request.deltas,
        live=live,
        published_seq=services.published_seq,
    )


@dataclass(slots=True)
class _PageBuilder:
    """A page while it is filled."""

    items: list[StoredEvent] = field(default_factory=list)
    more: bool = False
    shape: dict[str, Any] = field(default_factory=dict)

    def add(self, frame: Frame, conversation: str, limit: int) -> None:
        """Add a frame of the replay."""
        match frame:
            case Subscribed():
                self.shape |= control_frame(frame, conversation)
            case Gap() if not self.items:
                self.shape["gap"] = control_frame(frame, conversation)
            case Reset():
                self.shape["reset"] = control_frame(frame, conversation)
            case Events():
                room = limit - len(self.items)
                self.items += frame.items[:room]
                self.more = len(frame.items) > room


async def serve_page(services: StreamServices, event_request: EventRequest) -> web.Response:
    """Return one page; `next` is the cursor of the following page, null at the live edge.

    First waits until the events that were recorded before the request are published.
    """
    found = _PageBuilder()
    source = _frames(services, event_request, cursor=event_request.cursor or StreamCursor(0), live=False)
    try:
        await services.wait_until_published(event_request.account, event_request.conversation)
        async with aclosing(source) as given:
            async for frame in given:
                if found.items and isinstance(frame, Gap):
                    found.more = True  # reported at the beginning of the next page
                else:
                    found.add(frame, event_request.conversation, event_request.limit)
                if found.more:
                    break  # a conversation may have many more events
    except DeliveryError:
        raise HttpProblem(503, "NATS does not answer; try again", headers={"Retry-After": "2"}) from None
    shape = {key: found.shape[key] for key in ("epoch", "first_seq", "last_seq")}
    shape |= {key: found.shape[key] for key in ("gap", "reset") if key in found.shape}
    shape["next"] = found.items[-1].seq if found.more else None
    items = b",".join(item.as_json() for item in found.items)
    body = b'{"items":[' + items + b"]," + encode_json(shape)[1:]
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


async def serve_sse(
    request: web.Request,
    services: StreamServices,
    readers: StreamReaders,
    principal: Principal,
    event_request: EventRequest,
    *,
    seconds: float | None = None,
) -> web.StreamResponse:
    """Send server-sent events until one side disconnects, or for so many seconds."""
    source = _frames(services, event_request, cursor=event_request.cursor, live=True)
    with readers.register(principal, scope="read") as reader, reader.limited_to(seconds):
        async with aclosing(source) as given:
            try:
                first = await anext(given)
            except DeliveryError:
                raise HttpProblem(
                    503, "NATS does not answer; try again", headers={"Retry-After": "2"}
                ) from None
            response = await open_event_stream(request)
            assert isinstance(first, Subscribed)
            if has_events(request):
                await _SseStream(response, reader, event_request.conversation, first.epoch).run(given)
    return response


class _SseStream:
    """One stream of server-sent events."""

    def __init__(
        self, response: web.StreamResponse, reader: StreamReader, conversation: str, epoch: str
    ) -> None:
        self._response = response
        self._reader = reader
        self._conversation = conversation
        self._epoch = epoch

    async def run(self, source: AsyncIterator[Frame]) -> None:
        """Write until the peer disconnects or the reader is closed."""
        writing = asyncio.create_task(self._write_all(source))
        try:
            await asyncio.wait([writing, self._reader.closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write_all(self, source: AsyncIterator[Frame]) -> None:
        await self._write(b"retry: 1000\n\n")
        pending = asyncio.ensure_future(anext(source))
        try:
            while True:
                done, _ = await asyncio.wait({pending}, timeout=HEARTBEAT_SECONDS)
                if not done:
                    await self._write(b": \n\n")
                    continue
                await self._write(b"".join(self._render(pending.result())))
                pending = asyncio.ensure_future(anext(source))
        finally:
            pending.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await pending

    def _render(self, frame: Frame) -> list[bytes]:
        if isinstance(frame, Events):
            return [self._event(str(item.type), item.as_json(), item.seq) for item in frame.items]
        if isinstance(frame, Reset):
            self._epoch = frame.epoch
        shape = control_frame(frame, self._conversation)
        return [self._event(shape["type"], encode_json(shape), shape.get("seq"))]

    def _event(self, kind: str, body: bytes, seq: int | None) -> bytes:
        mark = b"" if seq is None else f"id: {self._epoch}-{seq}\n".encode()
        return b"%bevent: %b\ndata: %b\n\n" % (mark, kind.encode(), body)

    async def _write(self, body: bytes) -> None:
        async with asyncio.timeout(2 * SLOW_AFTER_SECONDS):
            await self._response.write(body)
