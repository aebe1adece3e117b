"""Plan the deliveries of events by their routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from channels.message import Address
from channels.port import ChannelLimits
from delivery.broker.port import WorkQueue
from delivery.database.engine import Connection
from delivery.database.tables import OPEN_DELIVERIES
from delivery.deliveries import ordering, queries, rendering
from delivery.deliveries import routes as route_store
from delivery.deliveries.part import Part, decode_part, encode_part
from delivery.deliveries.rendering import SpeechFormat
from delivery.deliveries.route import Route, RouteKind
from delivery.deliveries.routes import EndpointSubscription
from delivery.deliveries.store import NewDelivery
from delivery.events.event import DECISIONS, DELIVERY_EVENTS, Event, EventType
from delivery.events.outbox import RecordedEvents

MAX_MESSAGES = 2
"""Messages of one reply; a longer one fills a chat that people read, and is easier to read as a file."""

QUEUES = {RouteKind.CHAT: WorkQueue.DELIVER, RouteKind.WEBHOOK: WorkQueue.HOOK}


class Router:
    """Plans the deliveries of each route; `limits(channel)` returns a channel's text limits.

    A reply longer than `max_messages` (0: any number) is sent as one message and a file where
    `accepts_files(channel)`. With `speech` the last message of a turn is sent as a voice file as well.
    """

    def __init__(
        self,
        limits: Callable[[str], ChannelLimits],
        *,
        max_messages: int = MAX_MESSAGES,
        accepts_files: Callable[[str], bool] = lambda _channel: True,
        speech: SpeechFormat | None = None,
    ) -> None:
        self._limits = limits
        self._max_messages = max_messages
        self._accepts_files = accepts_files
        self._speech = speech

    async def plan(
        self, connection: Connection, conversation: str, recorded: RecordedEvents
    ) -> list[NewDelivery]:
        """Return the deliveries of a conversation's recorded events, in the order of the events."""
        events = [event for event in recorded.events if event.type not in DELIVERY_EVENTS]
        if not events:
            return []
        subscriptions = (
            await route_store.list_subscriptions(connection, conversation) if recorded.has_endpoints else []
        )
        planned: list[NewDelivery] = []
        spoken = rendering.spoken_events(events) if self._speech is not None else frozenset()
        for event in events:
            planned += self._plan_webhooks(event, subscriptions)
            planned += await self._plan_routes(connection, event, is_spoken=event.id in spoken)
        return planned

    async def _plan_routes(
        self, connection: Connection, event: Event, *, is_spoken: bool
    ) -> list[NewDelivery]:
        """Return the deliveries for the conversation's own routes; most events have none."""
        text_part, files = rendering.render_text(event), rendering.attachment_parts(event)
        if text_part is None and not files and event.type is not EventType.AGENT_FINISHED:
            return []
        if self._speech is not None and is_spoken and text_part is not None:
            files = [rendering.speech_part(event, self._speech), *files]
        routes = await route_store.list_routes(connection, event.conversation, event.turn)
        if text_part is not None or files:
            planned = self._chat_parts(event, text_part, files, routes)
            return await _with_replaced_message(connection, event, planned)
        hooks = {route.target: route for route in routes if route.kind is RouteKind.WEBHOOK}
        return [
            _webhook_delivery(event, account=route.account, endpoint=endpoint)
            for endpoint, route in hooks.items()
        ]

    def _chat_parts(
        self, event: Event, text_part: Part | None, files: list[Part], routes: list[Route]
    ) -> list[NewDelivery]:
        only = rendering.only_destination(event)
        return [
            NewDelivery(
                account=route.account,
                event=event,
                kind=RouteKind.CHAT,
                target=route.target,
                destination=route.destination,
                part=number,
                body=encode_part(part),
                ordering_key=ordering.ordering_key(event, part),
            )
            for route in routes
            if route.kind is RouteKind.CHAT and only in {None, route.destination}
            for number, part in enumerate([*self._text_parts(event, text_part, route), *files])
        ]

    def _text_parts(self, event: Event, text_part: Part | None, route: Route) -> list[Part]:
        if text_part is None:
            return []
        channel = Address.decode(route.target).channel
        most = self._max_messages if self._accepts_files(channel) else 0
        is_cut = event.data.get("truncated") is True
        return rendering.split_part(text_part, self._limits(channel), max_messages=most, is_cut=is_cut)

    @staticmethod
    def _plan_webhooks(event: Event, subscriptions: list[EndpointSubscription]) -> list[NewDelivery]:
        return [
            _webhook_delivery(event, account=one.account, endpoint=one.endpoint)
            for one in subscriptions
            if route_store.matches(one.patterns, str(event.type))
        ]


async def _with_replaced_message(
    connection: Connection, event: Event, planned: list[NewDelivery]
) -> list[NewDelivery]:
    """Return the deliveries so that the first part edits the message it replaces, if that is visible."""
    replaced_event = rendering.replaces_event(event)
    if replaced_event is None:
        return planned
    edits: list[NewDelivery] = []
    for one in planned:
        earlier = await queries.list_for_event(connection, replaced_event, one.target)
        last = max(earlier, key=lambda view: view.part, default=None)
        if one.part or last is None:
            edits.append(one)
        elif event.type in DECISIONS and not last.platform_id and last.state in OPEN_DELIVERIES:
            edits.append(_waiting_for(replaced_event, one))
        else:
            edits.append(replace(one, platform_id=last.platform_id))
    return edits


def _waiting_for(question: str, decision: NewDelivery) -> NewDelivery:
    """Return the delivery of a decision that changes its question once that has been sent."""
    part = replace(decode_part(decision.body), edits=question)
    key = ordering.ordering_key(decision.event, part)
    return replace(decision, body=encode_part(part), ordering_key=key)


def _webhook_delivery(event: Event, *, account: str, endpoint: str) -> NewDelivery:
    return NewDelivery(
        account=account,
        event=event,
        kind=RouteKind.WEBHOOK,
        target=endpoint,
        destination=endpoint,
        part=0,
        body=event.encode(),
    )
