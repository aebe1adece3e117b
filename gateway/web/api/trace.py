"""The trace of a message: every step from its acceptance to the platform's message id.

A turn's spans continue below the span of its caller, which the `traceparent` header names.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime

from delivery.database.engine import Connection
from delivery.deliveries import queries
from delivery.deliveries.queries import AttemptView, DeliveryView
from delivery.events import outbox
from delivery.events.event import Event
from gateway.store.turns import traces
from gateway.store.turns.traces import AcceptedMessage
from gateway.web.http.auth import KeyAccess
from gateway.web.http.problems import not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, ResponseModel

DETAIL_LENGTH = 200
"""Characters of a text that a step repeats."""

TRACEPARENT = "traceparent"

MAX_TRACEPARENT = 256
"""Characters of a header; version 00 has 55, later versions may have more."""

_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)


class TraceStep(ResponseModel):
    """A step of a trace: time, kind, id and outcome."""

    time: datetime
    what: str
    id: str
    state: str
    detail: str = ""


class Trace(ResponseModel):
    """The steps that belong to an id, in the order of time."""

    id: str
    turns: list[str]
    steps: list[TraceStep]


async def get_trace(call: ApiCall[NoContent, NoContent]) -> Trace:
    """Return every step of a message, turn, job or delivery."""
    wanted = call.path["id"]
    async with call.context.database.read() as connection:
        found = await traces.list_caused_turns(connection, call.account, wanted)
        if not found:
            raise not_found("there is no such message, turn, job or delivery in this account")
        steps = [step async for step in _steps(connection, call.account, found)]
    return Trace(id=wanted, turns=found, steps=sorted(steps, key=lambda step: step.time))


async def _steps(connection: Connection, account: str, turns: list[str]) -> AsyncIterator[TraceStep]:
    for message in await traces.list_accepted(connection, account, turns):
        yield _message_step(message)
    for turn in turns:
        for event in await outbox.list_for_turn(connection, turn):
            yield _event_step(event)
    for delivery in await queries.list_for_turns(connection, account, turns):
        for step in _delivery_steps(delivery, await queries.list_attempts(connection, delivery.id)):
            yield step


def _message_step(message: AcceptedMessage) -> TraceStep:
    origin = f"{message.source} {message.event_key}" if message.source else "over the API"
    return TraceStep(
        time=message.created_at,
        what="message",
        id=message.id,
        state="accepted",
        detail=f"{origin}: {message.text[:DETAIL_LENGTH]}",
    )


def _event_step(event: Event) -> TraceStep:
    about = event.data
    detail = about.get("text") or about.get("output") or about.get("error") or about.get("resultId") or ""
    return TraceStep(
        time=event.time, what="event", id=event.id, state=str(event.type), detail=str(detail)[:DETAIL_LENGTH]
    )


def _delivery_steps(delivery: DeliveryView, attempts: Iterable[AttemptView]) -> Iterator[TraceStep]:
    """Yield a delivery's attempts and its present state."""
    what = f"delivery {delivery.kind}" + (f" part {delivery.part + 1}" if delivery.part else "")
    for one in attempts:
        status = f"status {one.status} " if one.status else ""
        yield TraceStep(
            time=one.started_at,
            what=what,
            id=delivery.id,
            state=f"attempt {one.number}: {one.outcome or 'at work'}",
            detail=f"{status}{one.detail or ''}".strip(),
        )
    there = f"platform id {delivery.platform_id}" if delivery.platform_id else delivery.error or ""
    detail = f"{delivery.event_type} {there}".strip()
    yield TraceStep(time=delivery.updated_at, what=what, id=delivery.id, state=delivery.state, detail=detail)


def parse_traceparent(values: Sequence[str]) -> str | None:
    """Return W3C's header in the form of version 00; None if it is missing, repeated or invalid.

    The specification demands that an invalid header is ignored, so it is no error.
    https://www.w3.org/TR/trace-context/#traceparent-header
    """
    if len(values) != 1 or len(values[0]) > MAX_TRACEPARENT:
        return None
    found = _TRACEPARENT.fullmatch(values[0])
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["more"]):
        return None
    if not found["trace"].strip("0") or not found["span"].strip("0"):
        return None
    return f"00-{found['trace']}-{found['span']}-{found['flags']}"


ROUTES = tuple(
    ApiRoute(
        method="GET",
        path=path,
        access=KeyAccess("read"),
        handler=get_trace,
        summary=summary,
        response_model=Trace,
        tag="trace",
    )
    for path, summary in (
        ("/messages/{id}/trace", "trace a message"),
        ("/trace/{id}", "trace a message, turn, job or delivery"),
    )
)
"""The routes of traces; the second accepts any id."""
