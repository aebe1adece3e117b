"""Deliveries over HTTP: what is owed to whom, every attempt, and another try."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field

from delivery.database.engine import Connection
from delivery.deliveries import queries, store
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.queries import Standing
from delivery.deliveries.route import RouteKind
from delivery.deliveries.router import QUEUES
from gateway.web.http.pagination import Items, Page, cut
from gateway.web.http.problems import not_found
from gateway.web.http.route import Call, Nothing, Shown


class RouteShown(Shown):
    """Where a delivery goes."""

    kind: str
    endpoint: str | None = None
    url: str | None = None
    channel: str | None = None
    room: str | None = None
    thread: str | None = None


class DeliveryShown(Shown):
    """A delivery as it stands."""

    id: str
    state: DeliveryState
    kind: str
    type: str
    event: str
    route: RouteShown
    part: int
    attempts: int
    conversation: str | None
    turn: str | None
    platform_id: str | None
    error: str | None
    uncertain: bool
    due_at: datetime | None
    created_at: datetime
    updated_at: datetime


class AttemptShown(Shown):
    """One try."""

    number: int
    time: datetime
    outcome: str | None
    status: int | None
    duration_ms: float | None
    detail: str | None
    excerpt: str | None


class DeliveryDetail(Shown):
    """A delivery with every attempt."""

    id: str
    state: DeliveryState
    kind: str
    type: str
    event: str
    route: RouteShown
    part: int
    attempts: list[AttemptShown]
    conversation: str | None
    turn: str | None
    platform_id: str | None
    error: str | None
    uncertain: bool
    due_at: datetime | None
    created_at: datetime
    updated_at: datetime


class DeliveryPage(Page):
    """Which deliveries."""

    state: DeliveryState | None = None
    conversation: Annotated[str, Field(max_length=300)] | None = None


def _route(standing: Standing, urls: dict[str, str]) -> RouteShown:
    if standing.kind == RouteKind.WEBHOOK:
        return RouteShown(
            kind=standing.kind, endpoint=standing.target, url=_without_query(urls.get(standing.target))
        )
    address = json.loads(standing.target)
    return RouteShown(
        kind=standing.kind,
        channel=address["channel"],
        room=address["room"],
        thread=address["thread"],
    )


def _without_query(url: str | None) -> str | None:
    """A receiver's query may hold a token of its own; lists need not repeat it."""
    return None if url is None else url.partition("?")[0]


def _shown(standing: Standing, urls: dict[str, str]) -> DeliveryShown:
    return DeliveryShown(
        id=standing.id,
        state=DeliveryState(standing.state),
        kind=standing.kind,
        type=standing.event_type,
        event=standing.event_id,
        route=_route(standing, urls),
        part=standing.part,
        attempts=standing.attempts,
        conversation=standing.conversation,
        turn=standing.turn,
        platform_id=standing.platform_id,
        error=standing.error,
        uncertain=standing.uncertain,
        due_at=standing.next_at,
        created_at=standing.created_at,
        updated_at=standing.updated_at,
    )


async def shown_all(connection: Connection, found: Iterable[Standing]) -> list[DeliveryShown]:
    """Return deliveries as their owner sees them."""
    standings: Sequence[Standing] = list(found)
    hooks = {one.target for one in standings if one.kind == RouteKind.WEBHOOK}
    urls = await queries.urls(connection, hooks)
    return [_shown(one, urls) for one in standings]


async def list_deliveries(call: Call[Nothing, DeliveryPage]) -> Items[DeliveryShown]:
    """List the account's deliveries, newest first."""
    query = call.query
    async with call.surface.database.read() as connection:
        found = await queries.listed(
            connection,
            call.account,
            after=query.cursor,
            limit=query.limit + 1,
            state=str(query.state) if query.state else None,
            conversation=query.conversation,
        )
        page, following = cut(found, query.limit)
        return Items[DeliveryShown](items=await shown_all(connection, page), next=following)


async def _found(connection: Connection, account: str, delivery: str) -> Standing:
    standing = await queries.find(connection, account, delivery)
    if standing is None:
        raise not_found("there is no such delivery in this account")
    return standing


async def show_delivery(call: Call[Nothing, Nothing]) -> DeliveryDetail:
    """Return one delivery with every attempt."""
    async with call.surface.database.read() as connection:
        standing = await _found(connection, call.account, call.path["id"])
        (brief,) = await shown_all(connection, [standing])
        tried = await queries.attempts_of(connection, standing.id)
    attempts = [
        AttemptShown(
            number=one.number,
            time=one.started_at,
            outcome=one.outcome,
            status=one.status,
            duration_ms=one.duration_ms,
            detail=one.detail,
            excerpt=one.excerpt,
        )
        for one in tried
    ]
    return DeliveryDetail.model_validate(brief.model_dump() | {"attempts": attempts})


async def retry_delivery(call: Call[Nothing, Nothing]) -> DeliveryDetail:
    """Make a delivery due again, whatever became of it."""
    async with call.surface.database.begin() as connection:
        standing = await _found(connection, call.account, call.path["id"])
        due = await store.rearm(connection, call.account, standing.id)
    if due is not None:
        kind, destination = due
        call.core.ledger.signal(QUEUES[RouteKind(kind)], destination)
    return await show_delivery(call)


async def drop_delivery(call: Call[Nothing, Nothing]) -> DeliveryDetail:
    """Give a delivery up."""
    async with call.surface.database.begin() as connection:
        standing = await _found(connection, call.account, call.path["id"])
        await store.drop(connection, call.account, standing.id)
    return await show_delivery(call)
