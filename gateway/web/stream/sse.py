"""A conversation's events over HTTP: server-sent events, and pages for those who prefer to ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field, StrictStr

from delivery.errors import DeliveryError
from delivery.events.port import Recorded
from delivery.events.replay import Events, Frame, Gap, Reset, Subscribed, frames
from gateway.accounts.api_keys import Principal
from gateway.web.http.problems import Problem, misplaced, not_found
from gateway.web.http.route import Shown, Strict
from gateway.web.stream.frames import Cursor, control, cursor_of, dumped
from gateway.web.stream.readers import Reader, Readers, Readership
from gateway.web.stream.send_buffer import SLOW_AFTER

KEEP_ALIVE = 15.0
MOST_A_PAGE = 1000


class EventQuery(Strict):
    """From where, and how."""

    after: Annotated[str, Field(max_length=64)] | None = None
    epoch: Annotated[StrictStr, Field(max_length=40)] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_A_PAGE)] = 100
    deltas: bool = True


class EventPage(Shown):
    """Some events; `gap` and `reset` tell what is missing before them. `next` is null at the live edge."""

    items: list[dict[str, Any]]
    next: int | None
    first_seq: int
    last_seq: int
    epoch: str
    gap: dict[str, Any] | None = None
    reset: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A reading that was asked for and allowed."""

    conversation: str
    cursor: Cursor | None
    deltas: bool
    limit: int


async def wanted(
    request: web.Request, doors: Readership, principal: Principal, named: str, query: EventQuery
) -> Wanted:
    """Return what a request asks for; raises a Problem."""
    conversation = await doors.find_conversation(principal, named)
    if conversation is None:
        raise not_found("there is no such conversation in this account")
    text = request.headers.get("Last-Event-ID") or query.after
    cursor = cursor_of(text) if text is not None else None
    if text is not None and cursor is None:
        where = "header/Last-Event-ID" if "Last-Event-ID" in request.headers else "?/after"
        raise misplaced(where, "a position is N or <epoch>-N")
    if cursor is not None and cursor.epoch is None:
        cursor = Cursor(cursor.seq, query.epoch)
    return Wanted(conversation=conversation, cursor=cursor, deltas=query.deltas, limit=query.limit)


def wants_stream(request: web.Request) -> bool:
    """Tell whether server-sent events are asked for."""
    return "text/event-stream" in request.headers.get("Accept", "")


def _frames(
    doors: Readership, asked: Wanted, *, cursor: Cursor | None, live: bool
) -> AsyncGenerator[Frame, None]:
    return frames(
        doors.stream,
        asked.conversation,
        after=cursor.seq if cursor else None,
        epoch=cursor.epoch if cursor else None,
        deltas=asked.deltas,
        live=live,
    )


@dataclass(slots=True)
class _Page:
    """A page while it is filled."""

    items: list[Recorded] = field(default_factory=list)
    more: bool = False
    shape: dict[str, Any] = field(default_factory=dict)

    def take(self, frame: Frame, conversation: str, limit: int) -> None:
        """Take what one frame brings."""
        match frame:
            case Subscribed():
                self.shape |= control(frame, conversation)
            case Gap() if not self.items:
                self.shape["gap"] = control(frame, conversation)
            case Reset():
                self.shape["reset"] = control(frame, conversation)
            case Events():
                room = limit - len(self.items)
                self.items += frame.items[:room]
                self.more = len(frame.items) > room


async def page(doors: Readership, asked: Wanted) -> web.Response:
    """Answer with one page; `next` is the position to ask from, null at the live edge."""
    found = _Page()
    source = _frames(doors, asked, cursor=asked.cursor or Cursor(0), live=False)
    try:
        async with aclosing(source) as given:
            async for frame in given:
                if found.items and isinstance(frame, Gap):
                    found.more = True  # told of at the head of the next page
                if not found.more:
                    found.take(frame, asked.conversation, asked.limit)
    except DeliveryError:
        raise Problem(503, "the broker does not answer; try again", headers={"Retry-After": "2"}) from None
    shape = {key: found.shape[key] for key in ("epoch", "first_seq", "last_seq")}
    shape |= {key: found.shape[key] for key in ("gap", "reset") if key in found.shape}
    shape["next"] = found.items[-1].seq if found.more else None
    items = b",".join(item.as_json() for item in found.items)
    body = b'{"items":[' + items + b"]," + dumped(shape)[1:]
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


async def server_sent(
    request: web.Request, doors: Readership, readers: Readers, principal: Principal, asked: Wanted
) -> web.StreamResponse:
    """Answer with server-sent events until one side goes away."""
    source = _frames(doors, asked, cursor=asked.cursor, live=True)
    with readers.admitted(principal) as reader:
        async with aclosing(source) as given:
            try:
                first = await anext(given)
            except DeliveryError:
                raise Problem(
                    503, "the broker does not answer; try again", headers={"Retry-After": "2"}
                ) from None
            response = web.StreamResponse(
                headers={
                    "Content-Type": "text/event-stream",
                    "Cache-Control": "no-store",
                    "X-Accel-Buffering": "no",
                }
            )
            await response.prepare(request)
            assert isinstance(first, Subscribed)
            await _Sent(response, reader, asked.conversation, first.epoch).run(given)
    return response


class _Sent:
    """One stream of server-sent events."""

    def __init__(self, response: web.StreamResponse, reader: Reader, conversation: str, epoch: str) -> None:
        self._response = response
        self._reader = reader
        self._conversation = conversation
        self._epoch = epoch

    async def run(self, given: AsyncIterator[Frame]) -> None:
        """Write until the peer goes or the reader is ended."""
        writing = asyncio.create_task(self._write_all(given))
        try:
            await asyncio.wait([writing, self._reader.ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write_all(self, given: AsyncIterator[Frame]) -> None:
        await self._write(b"retry: 1000\n\n")
        pending = asyncio.ensure_future(anext(given))
        try:
            while True:
                done, _ = await asyncio.wait({pending}, timeout=KEEP_ALIVE)
                if not done:
                    await self._write(b": \n\n")
                    continue
                await self._write(b"".join(self._told(pending.result())))
                pending = asyncio.ensure_future(anext(given))
        finally:
            pending.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await pending

    def _told(self, frame: Frame) -> list[bytes]:
        if isinstance(frame, Events):
            return [self._event(str(item.type), item.as_json(), item.seq) for item in frame.items]
        if isinstance(frame, Reset):
            self._epoch = frame.epoch
        shape = control(frame, self._conversation)
        return [self._event(shape["type"], dumped(shape), shape.get("seq"))]

    def _event(self, kind: str, body: bytes, seq: int | None) -> bytes:
        mark = b"" if seq is None else f"id: {self._epoch}-{seq}\n".encode()
        return b"%bevent: %b\ndata: %b\n\n" % (mark, kind.encode(), body)

    async def _write(self, body: bytes) -> None:
        async with asyncio.timeout(2 * SLOW_AFTER):
            await self._response.write(body)
