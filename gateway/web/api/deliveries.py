"""Deliveries over HTTP: list, show attempts, retry and drop."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated

from pydantic import Field

from delivery.database.engine import Connection
from delivery.deliveries import queries, store
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.port import OutcomeKind
from delivery.deliveries.queries import DeliveryView
from delivery.deliveries.route import RouteKind
from delivery.deliveries.router import QUEUES
from gateway.web.api.conversations import filter_by
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import not_found
from gateway.web.http.route import ApiCall, NoContent, ResponseModel


class RouteResponse(ResponseModel):
    """Where a delivery goes."""

    kind: RouteKind
    endpoint: str | None = None
    url: str | None = None
    channel: str | None = None
    room: str | None = None
    thread: str | None = None


class DeliveryResponse(ResponseModel):
    """A delivery and its state."""

    id: str
    state: DeliveryState
    kind: RouteKind
    type: str
    event: str
    route: RouteResponse
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


class AttemptResponse(ResponseModel):
    """One try."""

    number: int
    time: datetime
    outcome: OutcomeKind | None
    status: int | None
    duration_ms: float | None
    detail: str | None
    excerpt: str | None


class DeliveryDetail(ResponseModel):
    """A delivery with every attempt."""

    id: str
    state: DeliveryState
    kind: RouteKind
    type: str
    event: str
    route: RouteResponse
    part: int
    attempts: list[AttemptResponse]
    conversation: str | None
    turn: str | None
    platform_id: str | None
    error: str | None
    uncertain: bool
    due_at: datetime | None
    created_at: datetime
    updated_at: datetime


class DeliveryQuery(PageQuery):
    """The filter of deliveries."""

    state: DeliveryState | None = None
    conversation: Annotated[str, Field(max_length=300)] | None = None


def _route(delivery: DeliveryView, urls: dict[str, str]) -> RouteResponse:
    if delivery.kind == RouteKind.WEBHOOK:
        url = _without_query(urls.get(delivery.target))
        return RouteResponse(kind=RouteKind.WEBHOOK, endpoint=delivery.target, url=url)
    address = json.loads(delivery.target)
    return RouteResponse(
        kind=RouteKind.CHAT,
        channel=address["channel"],
        room=address["room"],
        thread=address["thread"],
    )


def _without_query(url: str | None) -> str | None:
    """Return a URL without its query, which may contain a token."""
    return None if url is None else url.partition("?")[0]


def _to_response(delivery: DeliveryView, urls: dict[str, str]) -> DeliveryResponse:
    return DeliveryResponse(
        id=delivery.id,
        state=DeliveryState(delivery.state),
        kind=RouteKind(delivery.kind),
        type=delivery.event_type,
        event=delivery.event_id,
        route=_route(delivery, urls),
        part=delivery.part,
        attempts=delivery.attempts,
        conversation=delivery.conversation,
        turn=delivery.turn,
        platform_id=delivery.platform_id,
        error=delivery.error,
        uncertain=delivery.uncertain,
        due_at=delivery.next_at,
        created_at=delivery.created_at,
        updated_at=delivery.updated_at,
    )


async def to_responses(connection: Connection, deliveries: Iterable[DeliveryView]) -> list[DeliveryResponse]:
    """Return deliveries as responses."""
    standings: Sequence[DeliveryView] = list(deliveries)
    hooks = {one.target for one in standings if one.kind == RouteKind.WEBHOOK}
    urls = await queries.get_endpoint_urls(connection, hooks)
    return [_to_response(one, urls) for one in standings]


async def list_deliveries(call: ApiCall[NoContent, DeliveryQuery]) -> ListPage[DeliveryResponse]:
    """List the account's deliveries, newest first."""
    query = call.query
    async with call.context.database.read() as connection:
        found = await queries.list_for_account(
            connection,
            call.account,
            after=query.cursor,
            limit=query.limit + 1,
            state=str(query.state) if query.state else None,
            conversation=await filter_by(connection, call.account, query.conversation),
        )
        page, following = paginate(found, query.limit)
        return ListPage[DeliveryResponse](items=await to_responses(connection, page), next=following)


async def _require_delivery(connection: Connection, account: str, delivery_id: str) -> DeliveryView:
    delivery = await queries.get(connection, account, delivery_id)
    if delivery is None:
        raise not_found("there is no such delivery in this account")
    return delivery


async def get_delivery(call: ApiCall[NoContent, NoContent]) -> DeliveryDetail:
    """Return one delivery with every attempt."""
    async with call.context.database.read() as connection:
        delivery = await _require_delivery(connection, call.account, call.path["id"])
        (brief,) = await to_responses(connection, [delivery])
        tried = await queries.list_attempts(connection, delivery.id)
    attempts = [
        AttemptResponse(
            number=one.number,
            time=one.started_at,
            outcome=OutcomeKind(one.outcome) if one.outcome else None,
            status=one.status,
            duration_ms=one.duration_ms,
            detail=one.detail,
            excerpt=one.excerpt,
        )
        for one in tried
    ]
    return DeliveryDetail.model_validate(brief.model_dump() | {"attempts": attempts})


async def retry_delivery(call: ApiCall[NoContent, NoContent]) -> DeliveryDetail:
    """Make a delivery due again, whatever its state."""
    async with call.context.database.begin() as connection:
        delivery = await _require_delivery(connection, call.account, call.path["id"])
        due = await store.requeue(connection, call.account, delivery.id)
    if due is not None:
        kind, destination = due
        call.services.transactions.wake_soon(QUEUES[RouteKind(kind)], destination, account=call.account)
    return await get_delivery(call)


async def drop_delivery(call: ApiCall[NoContent, NoContent]) -> DeliveryDetail:
    """Drop a delivery; it is not sent any more."""
    async with call.context.database.begin() as connection:
        delivery = await _require_delivery(connection, call.account, call.path["id"])
        await store.drop(connection, call.account, delivery.id)
    return await get_delivery(call)
