"""SQL of destinations: which are paused, and which are dead.

A destination is a chat of a bot, a webhook endpoint, or all chats of a bot
(`delivery.deliveries.route.bot_destination`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, bindparam, case, exists, select, true, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from delivery.database.tables import IS_OPEN, deliveries, destinations
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.retry_schedule import RETRY_AFTER_CAP
from delivery.deliveries.route import RouteKind

LONG_WAIT = timedelta(minutes=1)
"""A delivery that is due earlier is left alone: a platform's disturbance ends by itself."""

LONGEST_PAUSE = timedelta(seconds=RETRY_AFTER_CAP)
"""A pause that ends later was computed by a clock which was fast, and has ended."""

_DESTINATIONS = select(
    destinations.c.destination, destinations.c.held_until, destinations.c.dead_at, destinations.c.dead_why
).where(destinations.c.destination.in_([bindparam("at"), bindparam("bot")]))

_MARK_ALIVE = (
    update(destinations)
    .where(destinations.c.destination == bindparam("at"), destinations.c.dead_at.is_not(None))
    .values(dead_at=None, dead_why=None)
)
_END_PAUSE = (
    update(destinations)
    .where(destinations.c.destination == bindparam("at"), destinations.c.held_until.is_not(None))
    .values(held_until=None)
)


_WAITS_FOR_LONG = (
    IS_OPEN,
    deliveries.c.state == str(DeliveryState.RETRYING),
    deliveries.c.next_at > bindparam("soon"),
)
_WAITING_TARGETS = (
    select(deliveries.c.target, deliveries.c.destination)
    .distinct()
    .where(*_WAITS_FOR_LONG, deliveries.c.kind == str(RouteKind.CHAT))
)


async def pause(connection: Connection, destination: str, *, account: str, until: datetime) -> None:
    """Pause a destination until a moment; a longer pause is not shortened."""
    is_longer = destinations.c.held_until.between(until, utc_now() + LONGEST_PAUSE)
    longest = case((is_longer, destinations.c.held_until), else_=until)
    await connection.execute(
        insert_on_conflict(destinations, connection.dialect.name)
        .values(destination=destination, account=account, held_until=until)
        .on_conflict_do_update(index_elements=["destination"], set_={"held_until": longest})
    )


async def end_pause(connection: Connection, destination: str) -> None:
    """End the pause of a destination, because its owner asks for a delivery or has changed it."""
    await connection.execute(_END_PAUSE, {"at": destination})


async def mark_dead(connection: Connection, destination: str, *, account: str, why: str) -> None:
    """Mark a chat that no longer accepts messages as dead; the worker then suppresses its deliveries."""
    now = utc_now()
    dead: dict[str, object] = {"dead_at": now, "dead_why": why[:500]}
    await connection.execute(
        insert_on_conflict(destinations, connection.dialect.name)
        .values(destination=destination, account=account, **dead)
        .on_conflict_do_update(index_elements=["destination"], set_=dead)
    )


async def mark_alive(connection: Connection, destination: str) -> bool:
    """Mark a chat as alive again, because a message came from it or an operator asked for a retry.

    Returns whether it was dead.
    """
    return (await connection.execute(_MARK_ALIVE, {"at": destination})).rowcount > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationState:
    """A destination's pause, the pause of its whole bot, and why and since when it is dead (None: alive)."""

    paused_until: datetime | None = None
    bot_paused_until: datetime | None = None
    dead_reason: str | None = None
    dead_since: datetime | None = None

    def remaining_pause(self, now: datetime) -> float:
        """Return the seconds for which nothing may be sent there; 0 when nothing is paused."""
        ends = [moment for moment in (self.paused_until, self.bot_paused_until) if moment is not None]
        return max([0.0, *((moment - now).total_seconds() for moment in ends)])


_own, _bot = destinations.alias("own"), destinations.alias("bot")


def with_state(query: Select[Any], destination: ColumnElement[str]) -> Select[Any]:
    """Return a query with the columns of `to_state` for the destination of its rows.

    Its parameter `bot` is the destination of all chats of the bot.
    """
    return (
        query.add_columns(
            _own.c.held_until.label("own_held_until"),
            _own.c.dead_at.label("own_dead_at"),
            _own.c.dead_why.label("own_dead_why"),
            _bot.c.held_until.label("bot_held_until"),
        )
        .outerjoin(_own, _own.c.destination == destination)
        .outerjoin(_bot, _bot.c.destination == bindparam("bot"))
    )


def to_state(row: Row[Any]) -> DestinationState:
    """Return the state of a destination from a row of a query that `with_state` has extended."""
    return DestinationState(
        paused_until=_possible(row.own_held_until),
        bot_paused_until=_possible(row.bot_held_until),
        dead_reason=(row.own_dead_why or "the chat is dead") if row.own_dead_at else None,
        dead_since=row.own_dead_at,
    )


async def get_state(connection: Connection, destination: str, *, bot: str = "") -> DestinationState:
    """Return the state of a destination; `bot` is the destination of all chats of its bot."""
    rows = {row[0]: row for row in await connection.execute(_DESTINATIONS, {"at": destination, "bot": bot})}
    own, whole_bot = rows.get(destination), rows.get(bot)
    return DestinationState(
        paused_until=_possible(own[1]) if own else None,
        bot_paused_until=_possible(whole_bot[1]) if whole_bot else None,
        dead_reason=(own[3] or "the chat is dead") if own and own[2] else None,
        dead_since=own[2] if own else None,
    )


def _possible(until: datetime | None) -> datetime | None:
    """Return the end of a pause, or None if no clock that is right can have computed it."""
    return None if until is None or until > utc_now() + LONGEST_PAUSE else until


def soon() -> datetime:
    """Return until when a delivery must be due for its wait to be no long one."""
    return utc_now() + LONG_WAIT


def waits_for_long(destination: str) -> ColumnElement[bool]:
    """Return whether something waits for long at a destination, the parameter of this name.

    The parameter `soon` has the value of `soon()`. What is parked holds nothing else, and keeps its time.
    """
    return exists().where(*_waits(destination))


async def end_waits(connection: Connection, destination: str) -> bool:
    """Make due what waits for long at a destination, because what it waits for may be over.

    Returns whether anything did, such as for a permission in the room. A pause of the destination stays.
    """
    now = utc_now()
    waiting = select(deliveries.c.id).where(*_waits("at")).with_for_update(skip_locked=True)
    ended = await connection.execute(
        update(deliveries).where(deliveries.c.id.in_(waiting)).values(next_at=now),
        {"at": destination, "soon": now + LONG_WAIT},
    )
    return ended.rowcount > 0


async def list_waiting_targets(connection: Connection, channel: str) -> list[str]:
    """Return the addresses in a channel's chats at which something waits for long, each once."""
    found = await connection.execute(_WAITING_TARGETS, {"soon": soon()})
    return [target for target, destination in found if json.loads(destination)[0] == channel]


async def list_dead(connection: Connection, channel: str, *, before: datetime | None = None) -> list[str]:
    """Return the dead chats of a channel; with `before` those that died before a moment."""
    in_channel = destinations.c.destination.startswith(json.dumps([channel])[:-1], autoescape=True)
    found = await connection.execute(
        select(destinations.c.destination).where(
            destinations.c.dead_at.is_not(None),
            in_channel,
            true() if before is None else destinations.c.dead_at < before,
        )
    )
    return list(found.scalars())


def _waits(destination: str) -> tuple[ColumnElement[bool], ...]:
    return (deliveries.c.destination == bindparam(destination), *_WAITS_FOR_LONG)
