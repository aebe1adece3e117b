"""The order of deliveries: which of a destination's deliveries may be sent now, and which wait for others.

A delivery waits for

- earlier ones with the same ordering key, unless they are parked;
- earlier text parts of its own event, parked or not, so that a reply is never shown without its beginning.

An ordering key names one sequence: the texts of a conversation, its files, its urgent notices, the messages
of its jobs, changes of messages or of ended questions, or the events for a webhook endpoint. So a file holds
no text, an answer to a command waits for no result, a result waits for no report of progress, and a
conversation holds no other one in the same room.

A chat that accepts messages again gets what it missed within a day, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from sqlalchemy import Executable, and_, bindparam, case, exists, func, or_, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from delivery.database.partial_indexes import literal_in
from delivery.database.tables import IS_OPEN, OPEN_DELIVERIES, deliveries
from delivery.database.tables import destinations as held
from delivery.deliveries import destinations, store
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.destinations import DestinationState
from delivery.deliveries.job_message import JOB_STATES
from delivery.deliveries.part import Part
from delivery.deliveries.port import Delivery
from delivery.deliveries.store import DueDelivery, NewDelivery
from delivery.events.event import REQUEST_ENDS, Event

FILES, URGENT, JOBS, CHANGES, QUESTIONS = " files", " urgent", " jobs", " changes", " questions"
"""Suffixes of the ordering keys of a conversation's files, urgent notices, messages of jobs, changes of
messages, and changes of questions that have ended."""

MIN_PARKED_SECONDS = 60.0
"""A parked delivery is tried earlier than scheduled at most this often."""

MISSED_AGE = timedelta(days=1)
"""How old a message may be that a chat gets later, as for a chat whose platform cannot be reached."""

RETESTED_AFTER = timedelta(hours=6)
"""A dead chat for which there is a new message is tried again after this time."""

_STALE = (URGENT, JOBS, CHANGES)
"""What means nothing later: answers to commands, reports of progress, and changes of messages."""

_PARKED = str(DeliveryState.PARKED)
_earlier = deliveries.alias("earlier")


def ordering_key(event: Event, part: Part) -> str:
    """Return the ordering key of one part of an event that goes to a chat."""
    if part.file is not None:
        return event.conversation + FILES
    if event.type in JOB_STATES:
        return event.conversation + JOBS
    if part.edits is not None and event.type in REQUEST_ENDS:
        return event.conversation + QUESTIONS
    if part.edits is not None or part.reaction is not None:
        return event.conversation + CHANGES
    return event.conversation + URGENT if event.data.get("urgent") else event.conversation


def is_urgent(key: str) -> bool:
    """Return whether an ordering key is that of urgent notices."""
    return key.endswith(URGENT)


def is_quiet(key: str) -> bool:
    """Return whether people get no notice if such a delivery is parked: messages of jobs, and changes."""
    return key.endswith((JOBS, CHANGES, QUESTIONS))


def _due_heads() -> Executable:
    same_key = and_(_earlier.c.ordering_key == deliveries.c.ordering_key, _earlier.c.state != _PARKED)
    same_event = and_(
        _earlier.c.event_id == deliveries.c.event_id,
        _earlier.c.target == deliveries.c.target,
        ~_earlier.c.ordering_key.endswith(FILES, autoescape=True),
    )
    waits = (
        select(_earlier.c.position)
        .where(
            _earlier.c.destination == bindparam("at"),
            literal_in(_earlier.c.state, OPEN_DELIVERIES),
            _earlier.c.position < deliveries.c.position,
            or_(same_key, same_event),
        )
        .exists()
    )
    return (
        destinations.with_state(select(deliveries), deliveries.c.destination)
        .where(
            deliveries.c.destination == bindparam("at"),
            IS_OPEN,
            (deliveries.c.next_at.is_(None)) | (deliveries.c.next_at <= bindparam("now")),
            ~waits,
        )
        .order_by(
            case((deliveries.c.ordering_key.endswith(URGENT, autoescape=True), 0), else_=1),
            deliveries.c.position,
        )
        .limit(bindparam("most"))
    )


_DUE_HEADS = _due_heads()
_HAS_OPEN = exists().where(deliveries.c.destination == bindparam("at"), IS_OPEN)
_IS_HELD = exists().where(
    held.c.destination.in_([bindparam("at"), bindparam("bot")]),
    held.c.dead_at.is_not(None) | (held.c.held_until > bindparam("now")),
)
_NEXT_DUE = select(func.min(deliveries.c.next_at)).where(
    deliveries.c.destination == bindparam("at"),
    IS_OPEN,
    deliveries.c.next_at > bindparam("now"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueHeads:
    """The due deliveries of a destination that wait for no other one, urgent notices first; its state."""

    deliveries: Sequence[DueDelivery]
    state: DestinationState


async def list_due_heads(
    connection: Connection, destination: str, *, bot: str, now: datetime, limit: int
) -> DueHeads:
    """Return what is due at a destination; `bot` is the destination of all chats of its bot."""
    found = await connection.execute(_DUE_HEADS, {"at": destination, "bot": bot, "now": now, "most": limit})
    rows = found.all()
    if not rows:
        return DueHeads(deliveries=(), state=await destinations.get_state(connection, destination, bot=bot))
    return DueHeads(deliveries=[store.to_due(row) for row in rows], state=destinations.to_state(rows[0]))


@cache
def _insert_if_free(dialect: str, columns: tuple[str, ...]) -> Executable:
    """Return the statement that inserts a delivery if it can be sent at once."""
    row = select(*(bindparam(f"new_{name}", type_=deliveries.c[name].type) for name in columns))
    inserted = insert_on_conflict(deliveries, dialect).from_select(
        list(columns), row.where(~_HAS_OPEN, ~_IS_HELD), include_defaults=False
    )
    return inserted.on_conflict_do_nothing(index_elements=store.IDENTITY).returning(deliveries.c.id)


async def create_sending(
    connection: Connection, planned: NewDelivery, *, bot: str, now: datetime
) -> DueDelivery | None:
    """Insert a delivery whose first attempt begins with this transaction; return it as it was due.

    None: nothing was inserted, because others at its destination are unfinished, the destination is paused or
    dead, or the delivery exists already.
    """
    row = store.new_row(planned, state=DeliveryState.SENDING, attempts=1, now=now)
    given = {f"new_{name}": value for name, value in row.items()}
    given |= {"at": planned.destination, "bot": bot, "now": now}
    inserted = await connection.execute(_insert_if_free(connection.dialect.name, tuple(row)), given)
    return planned.as_due(armed_at=now) if inserted.first() is not None else None


async def next_due_at(connection: Connection, destination: str, *, now: datetime) -> datetime | None:
    """Return when the next delivery of a destination is retried; None when none waits for its time."""
    moment: datetime | None = (
        await connection.execute(_NEXT_DUE, {"at": destination, "now": now})
    ).scalar_one()
    return moment


async def park_later_parts(connection: Connection, parked: Delivery, *, until: datetime | None) -> None:
    """Park the later text parts of a parked delivery's event, which hold no other event then."""
    await connection.execute(
        update(deliveries)
        .where(
            deliveries.c.event_id == parked.event_id,
            deliveries.c.target == parked.target,
            deliveries.c.part > parked.part,
            deliveries.c.state.in_((str(DeliveryState.PENDING), str(DeliveryState.RETRYING))),
            ~deliveries.c.ordering_key.endswith(FILES, autoescape=True),
        )
        .values(state=_PARKED, next_at=until)
    )


async def hurry_parked(connection: Connection, destination: str, *, now: datetime) -> None:
    """Make the parked deliveries of a destination due, because it accepts messages again."""
    await connection.execute(
        update(deliveries)
        .where(
            deliveries.c.destination == destination,
            IS_OPEN,
            deliveries.c.state == _PARKED,
            deliveries.c.next_at > now,
            deliveries.c.updated_at < now - timedelta(seconds=MIN_PARKED_SECONDS),
        )
        .values(next_at=now)
    )


async def reopen(connection: Connection, account: str, destination: str) -> bool:
    """Mark a chat as alive; if it was dead, what it missed is due again. Return whether it was dead."""
    if not await destinations.mark_alive(connection, destination):
        return False
    is_stale = or_(*(deliveries.c.ordering_key.endswith(suffix, autoescape=True) for suffix in _STALE))
    await connection.execute(
        update(deliveries)
        .where(
            deliveries.c.account == account,
            deliveries.c.destination == destination,
            deliveries.c.state == str(DeliveryState.SUPPRESSED),
            deliveries.c.error != store.DROPPED,
            deliveries.c.created_at > utc_now() - MISSED_AGE,
            ~is_stale,
        )
        .values(store.due_again())
    )
    return True


async def retry_channel(connection: Connection, account: str, channel: str, changed_at: datetime) -> set[str]:
    """Make due what failed in a channel before its settings were changed, also what dead chats have missed.

    Another bot's token may have been the cause. Returns the destinations; their pauses stay.
    """
    dead = await destinations.list_dead(connection, channel, before=changed_at)
    for destination in sorted(dead):
        await reopen(connection, account, destination)
    return {*dead, *await store.end_waits(connection, channel, changed_at=changed_at)}


async def reopen_if_due(connection: Connection, account: str, destination: str) -> bool:
    """Reopen a chat that has been dead for long; return whether it may be used, also if it is alive."""
    state = await destinations.get_state(connection, destination)
    if state.dead_since is not None and state.dead_since < utc_now() - RETESTED_AFTER:
        return await reopen(connection, account, destination)
    return state.dead_reason is None
