"""SQL of routes, and of the webhook subscriptions of a conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, insert, or_, select, update

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.database.tables import IS_OPEN, deliveries, endpoints, routes, streams
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.route import Route, RouteKind

CHANNEL_DELETED = "the channel was deleted"
"""Why the deliveries to the chats of a deleted channel end."""

_ROUTES = select(routes).where(
    routes.c.conversation == bindparam("of"),
    or_(routes.c.turn.is_(None), routes.c.turn == bindparam("turn_of")),
)


async def add_route(connection: Connection, route: Route) -> None:
    """Insert a route."""
    await connection.execute(
        insert(routes).values(
            id=route.id,
            account=route.account,
            conversation=route.conversation,
            turn=route.turn,
            kind=str(route.kind),
            target=route.target,
            created_at=route.created_at,
        )
    )


async def list_routes(connection: Connection, conversation: str, turn: str | None) -> list[Route]:
    """Return the routes of a conversation; of those bound to a turn, only the ones of `turn`."""
    rows = await connection.execute(_ROUTES, {"of": conversation, "turn_of": turn})
    return [_route(row) for row in rows]


def _route(row: object) -> Route:
    fields = row._mapping  # type: ignore[attr-defined]  # noqa: SLF001 - SQLAlchemy's public name of it
    return Route(
        id=fields["id"],
        account=fields["account"],
        conversation=fields["conversation"],
        turn=fields["turn"],
        kind=RouteKind(fields["kind"]),
        target=fields["target"],
        created_at=fields["created_at"],
    )


async def move_room(connection: Connection, *, old: Address, new: Address) -> set[str]:
    """Change the targets of every route to a room and its threads, or to one thread, whose id has changed.

    Returns the conversations of these routes.
    """
    names_it = routes.c.target.contains(json.dumps(old.room), autoescape=True)
    is_chat = routes.c.kind == str(RouteKind.CHAT)
    targets = await connection.execute(select(routes.c.target).where(is_chat, names_it).distinct())
    found: set[str] = set()
    for target in targets.scalars().all():
        if (moved := old.moved_target(target, new)) is not None:
            changed = update(routes).where(is_chat, routes.c.target == target).values(target=moved)
            found.update((await connection.execute(changed.returning(routes.c.conversation))).scalars())
    return found


async def replace_target(connection: Connection, conversation: str, *, old: str, new: str) -> None:
    """Change the target of a conversation's chat routes to `old` into `new`."""
    await connection.execute(
        update(routes)
        .where(
            routes.c.conversation == conversation,
            routes.c.kind == str(RouteKind.CHAT),
            routes.c.target == old,
        )
        .values(target=new)
    )


async def delete_channel(connection: Connection, account: str, channel: str) -> None:
    """Delete the routes to the chats of a channel that is deleted, and end what waits to be sent there."""
    names_it = routes.c.target.contains(f'"channel": {json.dumps(channel)}', autoescape=True)
    await connection.execute(
        delete(routes).where(routes.c.account == account, routes.c.kind == str(RouteKind.CHAT), names_it)
    )
    beginning = json.dumps([channel]).removesuffix("]") + ","
    waiting = (
        select(deliveries.c.id)
        .where(
            deliveries.c.account == account,
            deliveries.c.destination.startswith(beginning, autoescape=True),
            IS_OPEN,
            deliveries.c.state != DeliveryState.SENDING,
        )
        .with_for_update(skip_locked=True)
    )
    await connection.execute(
        update(deliveries)
        .where(deliveries.c.id.in_(waiting))
        .values(state=str(DeliveryState.SUPPRESSED), error=CHANNEL_DELETED, updated_at=utc_now())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSubscription:
    """A webhook of a conversation's account or agent, with its event patterns."""

    account: str
    endpoint: str
    patterns: Sequence[str]


_SUBSCRIPTIONS = (
    select(endpoints.c.account, endpoints.c.id, endpoints.c.events)
    .join(streams, streams.c.account == endpoints.c.account)
    .where(
        streams.c.conversation == bindparam("conversation"),
        (endpoints.c.origin == "record") | (endpoints.c.origin == "agent:" + streams.c.agent),
        endpoints.c.conversation.is_(None) | (endpoints.c.conversation == streams.c.conversation),
        endpoints.c.disabled_at.is_(None),
    )
)


async def list_subscriptions(connection: Connection, conversation: str) -> list[EndpointSubscription]:
    """Return the webhooks of the conversation's account and agent."""
    rows = await connection.execute(_SUBSCRIPTIONS, {"conversation": conversation})
    return [
        EndpointSubscription(account=row[0], endpoint=row[1], patterns=json.loads(row[2])) for row in rows
    ]


def matches(patterns: Sequence[str], event_type: str) -> bool:
    """Return whether one of the patterns, such as `*`, `job.*` or `agent.finished`, matches an event type."""
    family = event_type.split(".", 1)[0] + ".*"
    return any(pattern in ("*", family, event_type) for pattern in patterns)


async def delete_turn_routes(connection: Connection, turns: Sequence[str]) -> None:
    """Delete the routes of turns; the routes of their conversations stay."""
    await connection.execute(delete(routes).where(routes.c.turn.in_(turns)))
