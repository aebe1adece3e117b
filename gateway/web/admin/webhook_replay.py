"""Send a test event to a webhook, or past events again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, Field, StrictStr

from delivery.broker.port import WorkQueue
from delivery.database.engine import Connection
from delivery.deliveries import destinations, queries
from delivery.deliveries import store as delivery_store
from delivery.deliveries.queries import ReplayFilter
from delivery.deliveries.route import RouteKind
from delivery.deliveries.store import NewDelivery
from delivery.events.event import Event, EventType
from delivery.webhooks.endpoints import Endpoint
from gateway.records import webhooks
from gateway.store.accounts import accounts
from gateway.web.http.pagination import paginate
from gateway.web.http.problems import invalid
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel
from sandbox.config import ConfigProblem as Fault

MAX_EVENTS = 1000


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be within the years 1 to 9999 in UTC") from None


_Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]


class WebhookReplayCreate(RequestModel):
    """The events to send again: by id, or those in a range of time.

    `cursor` is the `next` of the response before, to the same range.
    """

    ids: Annotated[tuple[StrictStr, ...], Field(max_length=MAX_EVENTS)] = ()
    after: _Moment | None = None
    until: _Moment | None = None
    cursor: Annotated[StrictStr, Field(pattern=r"^evt_[0-9a-z]{1,40}$")] | None = None


class WebhookTestResponse(ResponseModel):
    """The test event and its delivery."""

    event: str
    delivery: str


class WebhookReplayResponse(ResponseModel):
    """The number of events queued again; `more` means that the range has further ones, after `next`."""

    replayed: int
    more: bool
    next: str | None


def _new_delivery(endpoint: Endpoint, event: Event) -> NewDelivery:
    return NewDelivery(
        account=endpoint.account,
        event=event,
        kind=RouteKind.WEBHOOK,
        target=endpoint.id,
        destination=endpoint.id,
        part=0,
        body=event.encode(),
    )


async def _get_enabled(connection: Connection, call: ApiCall[Any, NoContent]) -> Endpoint:
    """Return the webhook of the request, for new deliveries to it; raises WebhookDisabled, RecordNotFound."""
    await accounts.lock_against_deletion(connection, call.account)
    return await webhooks.get_enabled(connection, call.account, call.path["id"])


async def send_test_event(call: ApiCall[NoContent, NoContent]) -> WebhookTestResponse:
    """Send a test event; its delivery has the outcome."""
    core = call.services
    event = Event.now(EventType.WEBHOOK_TEST, "", {"text": "This is a test."})
    async with call.context.database.begin() as connection:
        endpoint = await _get_enabled(connection, call)
        await delivery_store.create(connection, [_new_delivery(endpoint, event)])
        await destinations.end_pause(connection, endpoint.id)
        (delivery,) = await queries.list_for_event(connection, event.id, endpoint.id)
    core.transactions.wake_soon(WorkQueue.HOOK, endpoint.id, account=call.account)
    return WebhookTestResponse(event=event.id, delivery=delivery.id)


async def replay_webhook(call: ApiCall[WebhookReplayCreate, NoContent]) -> WebhookReplayResponse:
    """Send events again with their original ids."""
    body, core = call.body, call.services
    if not body.ids and body.after is None:
        raise invalid([Fault(pointer="/after", detail="give ids, or the moment to replay after")])
    async with call.context.database.begin() as connection:
        endpoint = await _get_enabled(connection, call)
        found = await _list_events(connection, endpoint, body)
        page, following = paginate(found, MAX_EVENTS)
        await delivery_store.send_again(connection, [_new_delivery(endpoint, event) for event in page])
    core.transactions.wake_soon(WorkQueue.HOOK, endpoint.id, account=call.account)
    return WebhookReplayResponse(replayed=len(page), more=following is not None, next=following)


async def _list_events(
    connection: Connection, endpoint: Endpoint, request: WebhookReplayCreate
) -> list[Event]:
    """Return the events of a request's next page and one more, if there is one."""
    cursor = request.cursor
    if cursor is not None and not await queries.has_event(connection, endpoint.account, cursor):
        detail = "this event is no longer stored: replay after the time of the last event that you received"
        raise invalid([Fault(pointer="/cursor", detail=detail)])
    wanted = ReplayFilter(
        account=endpoint.account,
        ids=request.ids,
        after=request.after,
        until=request.until,
        patterns=endpoint.events,
        conversation=endpoint.conversation,
        cursor=cursor,
    )
    return await queries.list_events_to_replay(connection, wanted, limit=MAX_EVENTS + 1)
