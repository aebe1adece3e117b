"""SQL that lists deliveries, finds the events that a webhook can replay, and deletes old rows in steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    text,
    true,
)

from delivery.database.engine import Connection
from delivery.database.tables import (
    IS_FAILED,
    IS_OPEN,
    SENT_MESSAGES,
    attempts,
    deliveries,
    endpoints,
    outbox,
    streams,
)
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.part import Part, decode_part
from delivery.events.event import DELIVERY_EVENTS, Event, EventType


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryView:
    """The current state of a delivery."""

    id: str
    account: str
    event_id: str
    event_type: str
    event_time: datetime
    conversation: str | None
    turn: str | None
    kind: str
    target: str
    part: int
    state: str
    attempts: int
    uncertain: bool
    next_at: datetime | None
    platform_id: str | None
    error: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One attempt of a delivery; `outcome` is None while it is in progress or after it was interrupted."""

    number: int
    started_at: datetime
    duration_ms: float | None
    outcome: str | None
    status: int | None
    detail: str | None
    excerpt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReason:
    """Why so many deliveries of an account in a state have not arrived."""

    account: str
    state: str
    error: str
    count: int


BATCH_ROWS = 500
"""Rows that one step looks at, in the order of their age; a step is one short transaction."""

_DONE = (str(DeliveryState.DELIVERED), str(DeliveryState.SUPPRESSED))
_SEEN = [deliveries.c[name] for name in ("position", "id", "state", "created_at", "updated_at")]
_UNSENT = (str(DeliveryState.PENDING), str(DeliveryState.SENDING))
_FAILED = (str(DeliveryState.DEAD), str(DeliveryState.AMBIGUOUS))

_COLUMNS = [deliveries.c[name] for name in DeliveryView.__dataclass_fields__]
_OF_TURN = (
    select(*_COLUMNS)
    .where(deliveries.c.account == bindparam("whose"), deliveries.c.turn == bindparam("turn_of"))
    .order_by(deliveries.c.position)
    .limit(200)
)
_ATTEMPT_COLUMNS = [attempts.c[name] for name in AttemptView.__dataclass_fields__]


def _view(row: Row[Any]) -> DeliveryView:
    return DeliveryView(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name of it


async def list_for_account(
    connection: Connection,
    account: str,
    *,
    after: str | None = None,
    limit: int = 50,
    state: str | None = None,
    conversation: str | None = None,
) -> list[DeliveryView]:
    """Return an account's deliveries, newest first, older than the id `after`."""
    query = select(*_COLUMNS).where(deliveries.c.account == account)
    if after:
        query = query.where(deliveries.c.id < after)
    if state:
        query = query.where(deliveries.c.state == state)
    if conversation:
        query = query.where(deliveries.c.conversation == conversation)
    rows = await connection.execute(query.order_by(deliveries.c.id.desc()).limit(limit))
    return [_view(row) for row in rows]


async def get(connection: Connection, account: str, delivery: str) -> DeliveryView | None:
    """Return an account's delivery."""
    rows = await connection.execute(
        select(*_COLUMNS).where(deliveries.c.id == delivery, deliveries.c.account == account)
    )
    row = rows.one_or_none()
    return _view(row) if row else None


async def list_for_turns(connection: Connection, account: str, turns: Iterable[str]) -> list[DeliveryView]:
    """Return the deliveries of these turns' events, in order (at most 200)."""
    rows = await connection.execute(
        select(*_COLUMNS)
        .where(deliveries.c.account == account, deliveries.c.turn.in_(list(turns)))
        .order_by(deliveries.c.position)
        .limit(200)
    )
    return [_view(row) for row in rows]


async def list_for_turn(connection: Connection, account: str, turn: str) -> list[DeliveryView]:
    """Return the deliveries of a turn's events, in order (at most 200)."""
    rows = await connection.execute(_OF_TURN, {"whose": account, "turn_of": turn})
    return [_view(row) for row in rows]


async def list_for_job(connection: Connection, account: str, turn: str, job: str) -> list[DeliveryView]:
    """Return the webhook deliveries of a job's events, in order (at most 200); `turn` started the job."""
    of_turn = (deliveries.c.account == account, deliveries.c.turn == turn)
    of_jobs = (deliveries.c.kind == "webhook", deliveries.c.event_type.like("job.%"))
    rows = await connection.execute(select(deliveries.c.id, deliveries.c.body).where(*of_turn, *of_jobs))
    ids = [row.id for row in rows if Event.decode(row.body).data.get("resultId") == job]
    query = select(*_COLUMNS).where(deliveries.c.id.in_(ids[:200])).order_by(deliveries.c.position)
    return [_view(row) for row in await connection.execute(query)]


async def list_for_event(connection: Connection, event: str, target: str) -> list[DeliveryView]:
    """Return the deliveries of one event to one target."""
    rows = await connection.execute(
        select(*_COLUMNS).where(deliveries.c.event_id == event, deliveries.c.target == target)
    )
    return [_view(row) for row in rows]


async def is_shown_by(connection: Connection, event: str, destination: str, platform_id: str) -> bool:
    """Return whether a message of a chat shows an event, or a part of it."""
    rows = await connection.execute(
        select(deliveries.c.id).where(
            deliveries.c.event_id == event,
            deliveries.c.destination == destination,
            deliveries.c.platform_id == platform_id,
        )
    )
    return rows.first() is not None


async def list_chat_parts(connection: Connection, event: str) -> list[tuple[str, int]]:
    """Return (target, part) of the messages and files that an event has in chats."""
    rows = await connection.execute(
        select(deliveries.c.target, deliveries.c.part)
        .where(deliveries.c.event_id == event, deliveries.c.kind == "chat")
        .order_by(deliveries.c.part)
    )
    return [(row.target, row.part) for row in rows]


async def approval_message_at(
    connection: Connection, destination: str, platform_id: str
) -> DeliveryView | None:
    """Return the delivered approval request that is this message of a chat, or None."""
    rows = await connection.execute(
        select(*_COLUMNS)
        .where(
            deliveries.c.destination == destination,
            deliveries.c.state == "delivered",
            deliveries.c.event_type == literal_column("'approval.requested'"),
            deliveries.c.platform_id == platform_id,
        )
        .order_by(deliveries.c.position.desc())
        .limit(1)
    )
    row = rows.one_or_none()
    return _view(row) if row else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPart:
    """A part of a message that an agent sent in a conversation."""

    conversation: str
    part: Part


async def message_at(connection: Connection, destination: str, platform_id: str) -> SentPart | None:
    """Return what is this message of a chat, if an agent sent it; raises BadPart."""
    rows = await connection.execute(
        select(deliveries.c.conversation, deliveries.c.body)
        .where(
            deliveries.c.destination == destination,
            deliveries.c.platform_id == platform_id,
            text(SENT_MESSAGES),
        )
        .order_by(deliveries.c.position.desc())
        .limit(1)
    )
    row = rows.one_or_none()
    return SentPart(conversation=row.conversation, part=decode_part(row.body)) if row else None


async def has_answered(connection: Connection, destination: str) -> bool:
    """Return whether an agent has sent a message to a chat, as far as it is still recorded."""
    rows = await connection.execute(
        select(deliveries.c.id).where(deliveries.c.destination == destination, text(SENT_MESSAGES)).limit(1)
    )
    return rows.first() is not None


async def has_reacted(connection: Connection, turn: str) -> bool:
    """Return whether the agent added a reaction in a turn."""
    rows = await connection.execute(
        select(deliveries.c.id)
        .where(deliveries.c.turn == turn, deliveries.c.event_type == str(EventType.MESSAGE_REACTED))
        .limit(1)
    )
    return rows.first() is not None


async def list_attempts(connection: Connection, delivery: str) -> list[AttemptView]:
    """Return a delivery's attempts, in order."""
    rows = await connection.execute(
        select(*_ATTEMPT_COLUMNS).where(attempts.c.delivery == delivery).order_by(attempts.c.id)
    )
    return [AttemptView(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name of it


async def get_endpoint_urls(connection: Connection, ids: Iterable[str]) -> dict[str, str]:
    """Return the URLs of endpoints by id."""
    wanted = list(ids)
    if not wanted:
        return {}
    rows = await connection.execute(select(endpoints.c.id, endpoints.c.url).where(endpoints.c.id.in_(wanted)))
    return {row.id: row.url for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFilter:
    """Which events a webhook is sent again: by id, or those of a period that it subscribes to.

    `patterns` apply to a period only; `conversation` limits both. `cursor` is the id of the last event of the
    page before.
    """

    account: str
    ids: Sequence[str] = ()
    after: datetime | None = None
    until: datetime | None = None
    patterns: Sequence[str] = ()
    conversation: str | None = None
    cursor: str | None = None


async def list_events_to_replay(connection: Connection, wanted: ReplayFilter, *, limit: int) -> list[Event]:
    """Return the events that a filter selects, oldest first, without those about deliveries.

    Everything is selected in SQL: `limit` counts events that are sent again, and no others.
    """
    query = (
        select(outbox.c.body)
        .join(streams, streams.c.conversation == outbox.c.conversation)
        .where(streams.c.account == wanted.account, outbox.c.type.not_in(sorted(DELIVERY_EVENTS)))
        .where(outbox.c.event_id.in_(list(wanted.ids)) if wanted.ids else _matches(wanted.patterns))
    )
    if wanted.conversation is not None:
        query = query.where(outbox.c.conversation == wanted.conversation)
    if wanted.after is not None:
        query = query.where(outbox.c.created_at > wanted.after)
    if wanted.until is not None:
        query = query.where(outbox.c.created_at <= wanted.until)
    if wanted.cursor is not None:
        query = query.where(_follows(wanted.cursor))
    order = (outbox.c.created_at, outbox.c.conversation, outbox.c.n)
    rows = await connection.execute(query.order_by(*order).limit(limit))
    return [Event.decode(row.body) for row in rows]


def _matches(patterns: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition of `routes.matches`."""
    if "*" in patterns:
        return true()
    families = [one.removesuffix("*") for one in patterns if one.endswith(".*")]
    exact = outbox.c.type.in_([one for one in patterns if not one.endswith(".*")])
    return or_(exact, *(outbox.c.type.startswith(family, autoescape=True) for family in families))


def _follows(event: str) -> ColumnElement[bool]:
    """Return whether a row comes after that of an event, in the order of a replay."""
    last = outbox.alias("last")
    same_moment = outbox.c.created_at == last.c.created_at
    same_stream = and_(same_moment, outbox.c.conversation == last.c.conversation)
    later = or_(
        outbox.c.created_at > last.c.created_at,
        and_(same_moment, outbox.c.conversation > last.c.conversation),
        and_(same_stream, outbox.c.n > last.c.n),
    )
    return exists().where(last.c.event_id == event, later)


async def has_event(connection: Connection, account: str, event: str) -> bool:
    """Return whether an event of the account is stored."""
    found = select(outbox.c.n).join(streams, streams.c.conversation == outbox.c.conversation)
    owned = found.where(streams.c.account == account, outbox.c.event_id == event)
    return (await connection.execute(owned)).first() is not None


async def delete_deliveries(
    connection: Connection, *, after: int, done_before: datetime, failed_before: datetime | None
) -> int | None:
    """Delete old deliveries among the next rows after a position; return the last position or None.

    `failed_before` is for dead and ambiguous deliveries; None keeps them.
    """
    rows = await connection.execute(
        select(*_SEEN).where(deliveries.c.position > after).order_by(deliveries.c.position).limit(BATCH_ROWS)
    )
    page = rows.all()
    seen = [row for row in page if row.created_at < done_before]
    old = [
        row.id
        for row in seen
        if (row.state in _DONE and row.updated_at < done_before)
        or (failed_before is not None and row.state in _FAILED and row.updated_at < failed_before)
    ]
    await connection.execute(delete(deliveries).where(deliveries.c.id.in_(old)))
    return page[-1].position if seen and len(page) == BATCH_ROWS else None


async def list_failure_reasons(connection: Connection, *, limit: int) -> list[FailureReason]:
    """Return why deliveries of all accounts wait or have failed, the most frequent reason first."""
    reason, counted = (deliveries.c.account, deliveries.c.state, deliveries.c.error), func.count()
    failed = select(*reason, counted).where(or_(IS_OPEN, IS_FAILED), deliveries.c.error.is_not(None))
    ordered = failed.group_by(*reason).order_by(counted.desc(), *reason)
    rows = await connection.execute(ordered.limit(limit))
    return [FailureReason(account=row[0], state=row[1], error=row[2], count=row[3]) for row in rows]


async def has_unsent(connection: Connection, conversation: str) -> bool:
    """Return whether the first attempt of a conversation's delivery is still to be made or in progress."""
    found = await connection.execute(
        select(deliveries.c.id)
        .where(deliveries.c.conversation == conversation, deliveries.c.state.in_(_UNSENT))
        .limit(1)
    )
    return found.first() is not None


async def list_undelivered(
    connection: Connection, turns: Sequence[str], conversations: Sequence[str]
) -> frozenset[str]:
    """Return which of some turns, of these conversations, have an open delivery or an unpublished event."""
    open_deliveries = select(deliveries.c.turn).where(deliveries.c.turn.in_(turns), IS_OPEN)
    events = (
        select(outbox.c.turn)
        .join(streams, streams.c.conversation == outbox.c.conversation)
        .where(streams.c.conversation.in_(conversations), outbox.c.n > streams.c.relayed_n)
        .where(outbox.c.turn.in_(turns))
    )
    found = await connection.execute(open_deliveries.union(events))
    return frozenset(found.scalars())
