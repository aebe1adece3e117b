"""Plans deliveries: an event and its routes → rows, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable

from channels.message import Address
from channels.port import Limits
from delivery import obligations, store, telling
from delivery.database import Connection
from delivery.event import Event, Kind
from delivery.obligations import Planned
from delivery.part import Part, encode_part
from delivery.port import Queue
from delivery.route import Route, RouteKind

ABOUT_DELIVERIES = frozenset({Kind.DELIVERY_SUCCEEDED, Kind.DELIVERY_FAILED, Kind.DELIVERY_DEAD})
"""Events that are never sent to webhooks, or each delivery would cause another."""

QUEUES = {RouteKind.CHAT: Queue.DELIVER, RouteKind.WEBHOOK: Queue.HOOK}


class Router:
    """Knows what each route wants of an event. `limits(channel)` gives a channel's text limits."""

    def __init__(self, limits: Callable[[str], Limits]) -> None:
        self._limits = limits

    async def plan(self, connection: Connection, event: Event) -> set[tuple[Queue, str]]:
        """Insert the deliveries an event obliges us to; returns the wake-ups to send after the commit."""
        if event.type in ABOUT_DELIVERIES:
            return set()
        routes = await store.routes_for(connection, event.conversation, event.turn)
        planned = self._chat_parts(event, routes) + await self._hooks(connection, event, routes)
        await obligations.plan(connection, planned)
        return {(QUEUES[one.kind], one.destination) for one in planned}

    def _chat_parts(self, event: Event, routes: list[Route]) -> list[Planned]:
        said = telling.words(event)
        if said is None:
            return []
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
            for place, part in enumerate(self._parts(said, route))
        ]

    def _parts(self, said: Part, route: Route) -> list[Part]:
        return telling.parts(said, self._limits(Address.load(route.target).channel))

    async def _hooks(self, connection: Connection, event: Event, routes: list[Route]) -> list[Planned]:
        listening = await store.listening_endpoints(
            connection, conversation=event.conversation, event_type=str(event.type)
        )
        if event.type is Kind.AGENT_FINISHED:
            listening += [
                (route.account, route.target) for route in routes if route.kind is RouteKind.WEBHOOK
            ]
        return [
            Planned(
                account=account,
                event=event,
                kind=RouteKind.WEBHOOK,
                target=endpoint,
                destination=endpoint,
                part=0,
                body=event.dump(),
            )
            for account, endpoint in dict.fromkeys(listening)
        ]
