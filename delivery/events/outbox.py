"""SQL of conversations' streams and of the outbox that records their events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, bindparam, func, insert, literal_column, select, update

from delivery.database.batched_deletes import delete_batch
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.database.tables import IS_BEHIND, UtcDateTime, outbox, streams
from delivery.events.event import Event, EventType


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """A conversation with events that may not be published yet."""

    conversation: str
    account: str
    published_n: int
    last_n: int


async def create_stream(connection: Connection, *, conversation: str, account: str, agent: str) -> None:
    """Insert the stream row of a new conversation, from which its events are numbered."""
    await connection.execute(
        insert(streams).values(
            conversation=conversation,
            account=account,
            agent=agent,
            last_n=0,
            relayed_n=0,
            last_seq=0,
            active_at=utc_now(),
        )
    )


async def change_agent(connection: Connection, *, conversation: str, agent: str) -> None:
    """Set the agent of a conversation."""
    await connection.execute(
        update(streams).where(streams.c.conversation == conversation).values(agent=agent)
    )


# Statements that every message needs are built once: building a statement takes longer than running it.

# This one is text, because SQLAlchemy leaves the names of tables out of what SQLite returns.
_HAS_ENDPOINTS: ColumnElement[bool] = literal_column(
    "EXISTS (SELECT 1 FROM endpoints"
    " WHERE endpoints.account = streams.account AND endpoints.disabled_at IS NULL)"
)
_COUNT = (
    update(streams)
    .where(streams.c.conversation == bindparam("of"))
    .values(
        last_n=streams.c.last_n + bindparam("more"),
        active_at=func.coalesce(bindparam("active_at", type_=UtcDateTime), streams.c.active_at),
    )
    .returning(streams.c.last_n, _HAS_ENDPOINTS, streams.c.account)
)


_RECORD = insert(outbox)


_LAST_POSITION = select(streams.c.relayed_n, streams.c.last_seq, streams.c.account).where(
    streams.c.conversation == bindparam("of")
)
_BACKLOGS = (
    select(streams.c.conversation, streams.c.account, streams.c.relayed_n, streams.c.last_n)
    .where(IS_BEHIND)
    .limit(1000)
)
_UNPUBLISHED_UP_TO = select(streams.c.last_n).where(streams.c.conversation == bindparam("of"), IS_BEHIND)
_MARK = (
    update(streams)
    .where(streams.c.conversation == bindparam("of"), streams.c.relayed_n < bindparam("n"))
    .where(streams.c.last_n >= bindparam("n"))
    .values(relayed_n=bindparam("n"), last_seq=bindparam("seq"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvents:
    """Events with their numbers; without `has_endpoints` the account has no webhook that is enabled."""

    account: str
    events: list[Event]
    has_endpoints: bool


async def record(
    connection: Connection, by_conversation: Mapping[str, Sequence[Event]]
) -> dict[str, RecordedEvents]:
    """Number the events of conversations, insert them into the outbox, and return them numbered.

    Deleted conversations are left out: nobody reads their events, and a delivery that was in progress ends.
    """
    recorded = {}
    # Sorted, because two transactions that count in different orders would deadlock on PostgreSQL.
    for conversation in sorted(by_conversation):
        numbered = await _number(connection, conversation, by_conversation[conversation])
        if numbered is not None:
            recorded[conversation] = numbered
    rows = [
        {
            "event_id": event.id,
            "conversation": event.conversation,
            "account": numbered.account,
            "n": event.n,
            "type": str(event.type),
            "turn": event.turn,
            "body": event.encode(),
            "created_at": event.time,
        }
        for numbered in recorded.values()
        for event in numbered.events
    ]
    if rows:
        await connection.execute(_RECORD, rows)
    return recorded


async def _number(
    connection: Connection, conversation: str, events: Sequence[Event]
) -> RecordedEvents | None:
    """Return events of one conversation with their numbers; None if it was deleted.

    Every event except a delivery's is activity of the conversation.
    """
    active_at = max((event.time for event in events if not event.type.startswith("delivery.")), default=None)
    counted = await connection.execute(
        _COUNT, {"of": conversation, "more": len(events), "active_at": active_at}
    )
    row = counted.one_or_none()
    if row is None:
        return None
    last, has_endpoints, account = row
    first = last - len(events) + 1
    return RecordedEvents(
        account=account,
        events=[event.numbered(n) for n, event in enumerate(events, start=first)],
        has_endpoints=bool(has_endpoints),
    )


async def exists(connection: Connection, event_id: str) -> bool:
    """Return whether an event of this id is already recorded."""
    rows = await connection.execute(select(outbox.c.n).where(outbox.c.event_id == event_id))
    return rows.first() is not None


async def any_missing(connection: Connection, events: Sequence[Event]) -> bool:
    """Return whether one of some events is not recorded, although its conversation exists."""
    ids = select(outbox.c.event_id).where(outbox.c.event_id.in_([event.id for event in events]))
    recorded = set((await connection.execute(ids)).scalars())
    missing = {event.conversation for event in events if event.id not in recorded}
    known = select(streams.c.conversation).where(streams.c.conversation.in_(missing)).limit(1)
    return bool(missing) and (await connection.execute(known)).first() is not None


async def list_unpublished(
    connection: Connection, conversation: str, *, after: int, limit: int = 500
) -> list[Event]:
    """Return the events with n > `after`, in order."""
    rows = await connection.execute(
        select(outbox.c.body)
        .where(outbox.c.conversation == conversation, outbox.c.n > after)
        .order_by(outbox.c.n)
        .limit(limit)
    )
    return [Event.decode(row.body) for row in rows]


async def list_for_turn(connection: Connection, turn: str) -> list[Event]:
    """Return the recorded events of one turn, in order."""
    rows = await connection.execute(select(outbox.c.body).where(outbox.c.turn == turn).order_by(outbox.c.n))
    return [Event.decode(row.body) for row in rows]


async def list_of_type(connection: Connection, turn: str, event_type: EventType) -> list[Event]:
    """Return the recorded events of one turn that have this type, in order."""
    rows = await connection.execute(
        select(outbox.c.body)
        .where(outbox.c.turn == turn, outbox.c.type == str(event_type))
        .order_by(outbox.c.n)
    )
    return [Event.decode(row.body) for row in rows]


async def published_n(connection: Connection, conversation: str) -> int:
    """Return the n up to which all events of a conversation are known to have been published."""
    rows = await connection.execute(select(streams.c.relayed_n).where(streams.c.conversation == conversation))
    return rows.scalar_one_or_none() or 0


async def unpublished_up_to(connection: Connection, conversation: str) -> int | None:
    """Return the n of the last recorded event, or None if all are known to have been published."""
    rows = await connection.execute(_UNPUBLISHED_UP_TO, {"of": conversation})
    return rows.scalar_one_or_none()


async def mark_published(connection: Connection, marks: Iterable[tuple[str, int, int]]) -> None:
    """Store (conversation, n, seq) of published events; a stored n never decreases.

    That of an event which a fail-over of the database has lost is not stored: the next one with its n is
    another event.
    """
    # Sorted, because two replicas that mark the same conversations in different orders would deadlock.
    rows = [{"of": conversation, "n": n, "seq": seq} for conversation, n, seq in sorted(marks)]
    if rows:
        await connection.execute(_MARK, rows)


async def publish_again(connection: Connection, *, after_seq: int = -1) -> None:
    """Let relays publish all events of the outbox again, to a stream that has none of them.

    With `after_seq`, the end of a stream that lost its last events, only conversations that had later ones.
    What the stream has of them is not published twice: an append that conflicts continues after its tail.
    """
    first = select(func.min(outbox.c.n) - 1).where(outbox.c.conversation == streams.c.conversation)
    await connection.execute(
        update(streams)
        .where(streams.c.last_seq > after_seq)
        .values(relayed_n=func.coalesce(first.scalar_subquery(), streams.c.relayed_n), last_seq=0)
    )


async def list_backlogs(connection: Connection) -> list[Backlog]:
    """Return the conversations whose outbox is ahead of the stream."""
    rows = await connection.execute(_BACKLOGS)
    return [Backlog(conversation=row[0], account=row[1], published_n=row[2], last_n=row[3]) for row in rows]


async def last_position(connection: Connection, conversation: str) -> tuple[int, int, str] | None:
    """Return (n, seq, account): the last event that is known to be published (0, 0: none), and the owner.

    None: the conversation was deleted.
    """
    row = (await connection.execute(_LAST_POSITION, {"of": conversation})).first()
    return (row[0], row[1], row[2]) if row else None


async def account_of(connection: Connection, conversation: str) -> str:
    """Return the account of a conversation's stream, or "" if there is none."""
    rows = await connection.execute(select(streams.c.account).where(streams.c.conversation == conversation))
    account: str | None = rows.scalar()
    return account or ""


async def delete_published(connection: Connection, *, before: datetime) -> int:
    """Delete some published outbox rows that were created before a moment; return their number."""
    published = select(streams.c.relayed_n).where(streams.c.conversation == outbox.c.conversation)
    return await delete_batch(
        connection, outbox, outbox.c.created_at < before, outbox.c.n <= published.scalar_subquery()
    )
