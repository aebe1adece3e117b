"""SQL of everything a message led to: its turns, their jobs, and the jobs' follow-up turns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import or_, select

from delivery.database.engine import Connection
from delivery.database.tables import deliveries
from gateway.store.tables import conversations, inbox, jobs, messages, turns

MAX_TURNS = 50
"""Turns that one trace follows; a chain of jobs that is longer is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedMessage:
    """An accepted message: its channel (or `api`) and the platform's id of it."""

    id: str
    created_at: datetime
    author: str
    text: str
    source: str | None
    event_key: str | None


async def list_accepted(connection: Connection, account: str, turn_ids: list[str]) -> list[AcceptedMessage]:
    """Return the messages that these turns answer."""
    query = (
        select(
            messages.c.id,
            messages.c.created_at,
            messages.c.author,
            messages.c.text,
            inbox.c.source,
            inbox.c.event_key,
        )
        .select_from(messages)
        .join(turns, turns.c.message == messages.c.id)
        .outerjoin(inbox, (inbox.c.message == messages.c.id) & (inbox.c.account == account))
        .where(turns.c.account == account, turns.c.id.in_(turn_ids))
        .order_by(messages.c.position)
    )
    return [AcceptedMessage(**row) for row in (await connection.execute(query)).mappings()]


async def list_caused_turns(connection: Connection, account: str, item_id: str) -> list[str]:
    """Return the turns that a message, turn, job or delivery led to, in order; none for an unknown id."""
    found = await _first_turns(connection, account, item_id)
    while len(found) < MAX_TURNS:
        caused = (
            select(turns.c.id)
            .join(jobs, turns.c.job == jobs.c.id)
            .where(jobs.c.account == account, jobs.c.turn.in_(found), turns.c.id.not_in(found))
            .order_by(turns.c.position)
        )
        more = list((await connection.execute(caused)).scalars())
        if not more:
            break
        found += more
    return found[:MAX_TURNS]


async def _first_turns(connection: Connection, account: str, item_id: str) -> list[str]:
    said = (
        select(messages.c.turn)
        .join(conversations, conversations.c.id == messages.c.conversation)
        .where(conversations.c.account == account, messages.c.id == item_id)
    )
    ran = select(jobs.c.turn).where(jobs.c.account == account, jobs.c.id == item_id)
    owed = select(deliveries.c.turn).where(deliveries.c.account == account, deliveries.c.id == item_id)
    query = (
        select(turns.c.id)
        .where(
            turns.c.account == account,
            or_(
                turns.c.id == item_id,
                turns.c.message == item_id,
                turns.c.id.in_(said),
                turns.c.id.in_(ran),
                turns.c.id.in_(owed),
            ),
        )
        .order_by(turns.c.position)
    )
    return list((await connection.execute(query)).scalars())
