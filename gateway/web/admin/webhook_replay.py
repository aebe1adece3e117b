"""A webhook is sent a test, or again what it was sent before."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, Field, StrictStr

from delivery.broker.port import Queue
from delivery.database.engine import Connection
from delivery.deliveries import queries, routes
from delivery.deliveries import store as delivery_store
from delivery.deliveries.route import RouteKind
from delivery.deliveries.store import Planned
from delivery.events.event import Event, Kind
from delivery.webhooks.endpoints import Endpoint
from gateway.records import webhooks
from gateway.web.http.problems import Problem, invalid
from gateway.web.http.route import Call, Nothing, Shown, Strict
from sandbox.config import Problem as Fault

AT_MOST = 1000


class Replay(Strict):
    """What to send again: events by id, or those after (and until) a moment."""

    ids: Annotated[tuple[StrictStr, ...], Field(max_length=AT_MOST)] = ()
    after: AwareDatetime | None = None
    until: AwareDatetime | None = None


class Sent(Shown):
    """The test event and the delivery that carries it."""

    event: str
    delivery: str


class Replayed(Shown):
    """How many events are on their way again; `more`: the range holds further ones."""

    replayed: int
    more: bool


def _planned(endpoint: Endpoint, event: Event) -> Planned:
    return Planned(
        account=endpoint.account,
        event=event,
        kind=RouteKind.WEBHOOK,
        target=endpoint.id,
        destination=endpoint.id,
        part=0,
        body=event.dump(),
    )


async def test_webhook(call: Call[Nothing, Nothing]) -> Sent:
    """Send a test event; its delivery tells what came of it."""
    core = call.core
    event = Event.now(Kind.WEBHOOK_TEST, "", {"text": "This is a test."})
    async with call.surface.database.begin() as connection:
        endpoint = await webhooks.get(connection, call.account, call.path["id"])
        if endpoint.disabled_at is not None:
            raise Problem(409, "this webhook is disabled; enable it first")
        await delivery_store.plan(connection, [_planned(endpoint, event)])
        (delivery,) = await queries.of_event(connection, event.id, endpoint.id)
    core.ledger.signal(Queue.HOOK, endpoint.id)
    return Sent(event=event.id, delivery=delivery.id)


async def replay_webhook(call: Call[Replay, Nothing]) -> Replayed:
    """Send events again under their own ids."""
    body, core = call.body, call.core
    if not body.ids and body.after is None:
        raise invalid([Fault(pointer="/after", detail="give ids, or the moment to replay after")])
    async with call.surface.database.begin() as connection:
        endpoint = await webhooks.get(connection, call.account, call.path["id"])
        if endpoint.disabled_at is not None:
            raise Problem(409, "this webhook is disabled; enable it first")
        found = await _events(connection, endpoint, body)
        for event in found[:AT_MOST]:
            await _again(connection, endpoint, event)
    core.ledger.signal(Queue.HOOK, endpoint.id)
    return Replayed(replayed=len(found[:AT_MOST]), more=len(found) > AT_MOST)


async def _events(connection: Connection, endpoint: Endpoint, asked: Replay) -> list[Event]:
    after: datetime | None = asked.after
    told = await queries.told_between(
        connection, endpoint.account, ids=asked.ids, after=after, until=asked.until, limit=AT_MOST + 1
    )
    return [
        event
        for event in told
        if endpoint.conversation in (None, event.conversation)
        and (asked.ids or routes.wants(endpoint.events, str(event.type)))
    ]


async def _again(connection: Connection, endpoint: Endpoint, event: Event) -> None:
    await delivery_store.plan(connection, [_planned(endpoint, event)])
    for delivery in await queries.of_event(connection, event.id, endpoint.id):
        if delivery.state not in delivery_store.OPEN:
            await delivery_store.rearm(connection, endpoint.account, delivery.id)
