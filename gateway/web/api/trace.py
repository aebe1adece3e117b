"""What became of a message: every step from its acceptance to the platform's own message id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime

from delivery.database.engine import Connection
from delivery.deliveries import queries
from delivery.deliveries.queries import Standing, Tried
from delivery.events import outbox
from delivery.events.event import Event
from gateway.store.turns import traces
from gateway.store.turns.traces import Accepted
from gateway.web.http.auth import Key
from gateway.web.http.problems import not_found
from gateway.web.http.route import Call, Nothing, Route, Shown

SHORT = 200
"""Characters of a text that a step repeats."""


class TraceStep(Shown):
    """One thing that happened: when, what, to which id, how it came out."""

    time: datetime
    what: str
    id: str
    state: str
    detail: str = ""


class Trace(Shown):
    """All steps of what an id led to, in the order of time."""

    id: str
    turns: list[str]
    steps: list[TraceStep]


async def show(call: Call[Nothing, Nothing]) -> Trace:
    """Return every step of what a message, turn, job or delivery led to."""
    wanted = call.path["id"]
    async with call.surface.database.read() as connection:
        found = await traces.turns_from(connection, call.account, wanted)
        if not found:
            raise not_found("there is no such message, turn, job or delivery in this account")
        steps = [step async for step in _steps(connection, call.account, found)]
    return Trace(id=wanted, turns=found, steps=sorted(steps, key=lambda step: step.time))


async def _steps(connection: Connection, account: str, turns: list[str]) -> AsyncIterator[TraceStep]:
    for message in await traces.accepted_for(connection, account, turns):
        yield _accepted(message)
    for turn in turns:
        for event in await outbox.events_of_turn(connection, turn):
            yield _told(event)
    for standing in await queries.of_turns(connection, account, turns):
        for step in _delivered(standing, await queries.attempts_of(connection, standing.id)):
            yield step


def _accepted(message: Accepted) -> TraceStep:
    origin = f"{message.source} {message.event_key}" if message.source else "over the API"
    return TraceStep(
        time=message.created_at,
        what="message",
        id=message.id,
        state="accepted",
        detail=f"{origin}: {message.text[:SHORT]}",
    )


def _told(event: Event) -> TraceStep:
    about = event.data
    detail = about.get("text") or about.get("output") or about.get("error") or about.get("resultId") or ""
    return TraceStep(
        time=event.time, what="event", id=event.id, state=str(event.type), detail=str(detail)[:SHORT]
    )


def _delivered(standing: Standing, tries: Iterable[Tried]) -> Iterator[TraceStep]:
    """Yield a delivery's attempts and how it stands now."""
    what = f"delivery {standing.kind}" + (f" part {standing.part + 1}" if standing.part else "")
    for one in tries:
        status = f"status {one.status} " if one.status else ""
        yield TraceStep(
            time=one.started_at,
            what=what,
            id=standing.id,
            state=f"attempt {one.number}: {one.outcome or 'at work'}",
            detail=f"{status}{one.detail or ''}".strip(),
        )
    there = f"platform id {standing.platform_id}" if standing.platform_id else standing.error or ""
    detail = f"{standing.event_type} {there}".strip()
    yield TraceStep(time=standing.updated_at, what=what, id=standing.id, state=standing.state, detail=detail)


ROUTES = tuple(
    Route(
        method="GET",
        path=path,
        access=Key("read"),
        handler=show,
        summary=summary,
        gives=Trace,
        tag="trace",
    )
    for path, summary in (
        ("/messages/{id}/trace", "what became of a message"),
        ("/trace/{id}", "what became of a message, turn, job or delivery"),
    )
)
"""Two lines of the URL table; the second takes any id."""
