"""SQL of destinations: what is to be left alone for a while, and what takes nothing any more.

A destination is a room of a bot, or (`delivery.deliveries.route.bot_of`) everything that bot says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, case, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from delivery.database.tables import destinations

_DESTINATIONS = select(
    destinations.c.destination, destinations.c.held_until, destinations.c.dead_at, destinations.c.dead_why
).where(destinations.c.destination.in_([bindparam("at"), bindparam("bot")]))


async def pause(connection: Connection, destination: str, *, account: str, until: datetime) -> None:
    """Keep a whole destination waiting until a moment (the platform said so); a later one stands."""
    longest = case((destinations.c.held_until > until, destinations.c.held_until), else_=until)
    await connection.execute(
        insert_on_conflict(destinations, connection.dialect.name)
        .values(destination=destination, account=account, held_until=until)
        .on_conflict_do_update(index_elements=["destination"], set_={"held_until": longest})
    )


async def mark_dead(connection: Connection, destination: str, *, account: str, why: str) -> None:
    """Remember that a chat no longer takes our messages; what still waits for it is suppressed one by one."""
    now = utc_now()
    dead: dict[str, object] = {"dead_at": now, "dead_why": why[:500]}
    await connection.execute(
        insert_on_conflict(destinations, connection.dialect.name)
        .values(destination=destination, account=account, **dead)
        .on_conflict_do_update(index_elements=["destination"], set_=dead)
    )


async def mark_alive(connection: Connection, destination: str) -> None:
    """A message came from there: it is alive again."""
    await connection.execute(
        update(destinations)
        .where(destinations.c.destination == destination, destinations.c.dead_at.is_not(None))
        .values(dead_at=None, dead_why=None)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationState:
    """How a destination stands: until when it is to be left alone, alone or with all that its bot says
    (`bot_held_until`), and why it is dead (None: it is not)."""

    paused_until: datetime | None = None
    bot_paused_until: datetime | None = None
    dead_reason: str | None = None

    def remaining_pause(self, now: datetime) -> float:
        """Return the seconds for which nothing may be said there."""
        ends = [moment for moment in (self.paused_until, self.bot_paused_until) if moment is not None]
        return max([0.0, *((moment - now).total_seconds() for moment in ends)])


async def get_state(connection: Connection, destination: str, *, bot: str = "") -> DestinationState:
    """Return how a destination stands; `bot` is the one that stands for all that its bot says."""
    rows = {row[0]: row for row in await connection.execute(_DESTINATIONS, {"at": destination, "bot": bot})}
    own, all_of_it = rows.get(destination), rows.get(bot)
    return DestinationState(
        paused_until=own[1] if own else None,
        bot_paused_until=all_of_it[1] if all_of_it else None,
        dead_reason=(own[3] or "the chat is dead") if own and own[2] else None,
    )
