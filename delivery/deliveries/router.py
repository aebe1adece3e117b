"""Plans deliveries: an event and its routes → rows, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from channels.message import Address
from channels.port import ChannelLimits
from delivery.broker.port import WorkQueue
from delivery.database.engine import Connection
from delivery.deliveries import file_parts, queries, rendering
from delivery.deliveries import routes as route_store
from delivery.deliveries import store as delivery_store
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.route import Route, RouteKind
from delivery.deliveries.routes import EndpointSubscription
from delivery.deliveries.store import NewDelivery
from delivery.events.event import Event, EventType

DELIVERY_EVENTS = frozenset(
    {EventType.DELIVERY_SUCCEEDED, EventType.DELIVERY_FAILED, EventType.DELIVERY_DEAD}
)
"""Events that are never sent to webhooks, or each delivery would cause another."""

QUEUES = {RouteKind.CHAT: WorkQueue.DELIVER, RouteKind.WEBHOOK: WorkQueue.HOOK}


class Router:
    """Knows what each route wants of an event. `limits(channel)` gives a channel's text limits."""

    def __init__(self, limits: Callable[[str], ChannelLimits]) -> None:
        self._limits = limits

    async def plan(
        self, connection: Connection, conversation: str, events: Sequence[Event]
    ) -> set[tuple[WorkQueue, str]]:
        """Insert the deliveries that a conversation's events oblige us to; returns whom to wake for them."""
        events = [event for event in events if event.type not in DELIVERY_EVENTS]
        if not events:
            return set()
        listening = await route_store.list_subscriptions(connection, conversation)
        planned: list[NewDelivery] = []
        for event in events:
            planned += self._plan_webhooks(event, listening)
            planned += await self._plan_routes(connection, event)
        await delivery_store.create(connection, planned)
        return {(QUEUES[one.kind], one.destination) for one in planned}

    async def _plan_routes(self, connection: Connection, event: Event) -> list[NewDelivery]:
        """Plan what the conversation's own routes want; most events are nothing to them."""
        said, files = rendering.render_text(event), file_parts.attachment_parts(event)
        if said is None and not files and event.type is not EventType.AGENT_FINISHED:
            return []
        routes = await route_store.list_routes(connection, event.conversation, event.turn)
        if said is not None or files:
            return await _with_replaced_message(
                connection, event, self._chat_parts(event, said, files, routes)
            )
        hooks = {route.target: route for route in routes if route.kind is RouteKind.WEBHOOK}
        return [
            _webhook_delivery(event, account=route.account, endpoint=endpoint)
            for endpoint, route in hooks.items()
        ]

    def _chat_parts(
        self, event: Event, text_part: Part | None, files: list[Part], routes: list[Route]
    ) -> list[NewDelivery]:
        return [
            NewDelivery(
                account=route.account,
                event=event,
                kind=RouteKind.CHAT,
                target=route.target,
                destination=route.destination,
                part=place,
                body=encode_part(part),
            )
            for route in routes
            if route.kind is RouteKind.CHAT
            for place, part in enumerate([*self._text_parts(text_part, route), *files])
        ]

    def _text_parts(self, text_part: Part | None, route: Route) -> list[Part]:
        return (
            []
            if text_part is None
            else rendering.split_part(text_part, self._limits(Address.decode(route.target).channel))
        )

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
    """Let words that replace earlier ones be said where those show, or on their own if they do not show."""
    earlier = rendering.replaces_event(event)
    if earlier is None:
        return planned
    placed: list[NewDelivery] = []
    for one in planned:
        shown = await queries.list_for_event(connection, earlier, one.target)
        last = max(shown, key=lambda standing: standing.part, default=None)
        placed.append(replace(one, platform_id=last.platform_id if last and one.part == 0 else None))
    return placed


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
