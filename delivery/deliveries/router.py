"""Plans deliveries: an event and its routes → rows, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from channels.message import Address
from channels.port import Limits
from delivery.broker.port import Queue
from delivery.database.engine import Connection
from delivery.deliveries import file_parts, queries, rendering
from delivery.deliveries import routes as route_store
from delivery.deliveries import store as delivery_store
from delivery.deliveries.part import Part, encode_part
from delivery.deliveries.route import Route, RouteKind
from delivery.deliveries.routes import Listening
from delivery.deliveries.store import Planned
from delivery.events.event import Event, Kind

ABOUT_DELIVERIES = frozenset({Kind.DELIVERY_SUCCEEDED, Kind.DELIVERY_FAILED, Kind.DELIVERY_DEAD})
"""Events that are never sent to webhooks, or each delivery would cause another."""

QUEUES = {RouteKind.CHAT: Queue.DELIVER, RouteKind.WEBHOOK: Queue.HOOK}


class Router:
    """Knows what each route wants of an event. `limits(channel)` gives a channel's text limits."""

    def __init__(self, limits: Callable[[str], Limits]) -> None:
        self._limits = limits

    async def plan(
        self, connection: Connection, conversation: str, events: Sequence[Event]
    ) -> set[tuple[Queue, str]]:
        """Insert the deliveries that a conversation's events oblige us to; returns whom to wake for them."""
        events = [event for event in events if event.type not in ABOUT_DELIVERIES]
        if not events:
            return set()
        listening = await route_store.listening_endpoints(connection, conversation)
        planned: list[Planned] = []
        for event in events:
            planned += self._hooks(event, listening)
            planned += await self._routed(connection, event)
        await delivery_store.plan(connection, planned)
        return {(QUEUES[one.kind], one.destination) for one in planned}

    async def _routed(self, connection: Connection, event: Event) -> list[Planned]:
        """Plan what the conversation's own routes want; most events are nothing to them."""
        said, files = rendering.words(event), file_parts.parts(event)
        if said is None and not files and event.type is not Kind.AGENT_FINISHED:
            return []
        routes = await route_store.routes_for(connection, event.conversation, event.turn)
        if said is not None or files:
            return await _in_place(connection, event, self._chat_parts(event, said, files, routes))
        hooks = {route.target: route for route in routes if route.kind is RouteKind.WEBHOOK}
        return [_hook(event, account=route.account, endpoint=endpoint) for endpoint, route in hooks.items()]

    def _chat_parts(
        self, event: Event, said: Part | None, files: list[Part], routes: list[Route]
    ) -> list[Planned]:
        return [
            Planned(
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
            for place, part in enumerate([*self._parts(said, route), *files])
        ]

    def _parts(self, said: Part | None, route: Route) -> list[Part]:
        return [] if said is None else rendering.parts(said, self._limits(Address.load(route.target).channel))

    @staticmethod
    def _hooks(event: Event, listening: list[Listening]) -> list[Planned]:
        return [
            _hook(event, account=one.account, endpoint=one.endpoint)
            for one in listening
            if route_store.wants(one.patterns, str(event.type))
        ]


async def _in_place(connection: Connection, event: Event, planned: list[Planned]) -> list[Planned]:
    """Let words that replace earlier ones be said where those show, or on their own if they do not show."""
    earlier = rendering.takes_place_of(event)
    if earlier is None:
        return planned
    placed: list[Planned] = []
    for one in planned:
        shown = await queries.of_event(connection, earlier, one.target)
        last = max(shown, key=lambda standing: standing.part, default=None)
        placed.append(replace(one, platform_id=last.platform_id if last and one.part == 0 else None))
    return placed


def _hook(event: Event, *, account: str, endpoint: str) -> Planned:
    return Planned(
        account=account,
        event=event,
        kind=RouteKind.WEBHOOK,
        target=endpoint,
        destination=endpoint,
        part=0,
        body=event.dump(),
    )
