"""SQL of deliveries and their attempts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Executable, Row, bindparam, func, literal_column, select, text, update

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from delivery.database.tables import IS_OPEN, SENT_MESSAGES, deliveries, endpoints
from delivery.deliveries import destinations
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.part import BadPart, decode_part, encode_part
from delivery.deliveries.port import Delivery
from delivery.deliveries.route import RouteKind
from delivery.events.event import Event, new_id

IDENTITY = ("event_id", "kind", "target", "part")
"""The columns that identify a delivery: there is one for each part of an event and target."""

DROPPED = "dropped"
"""The error of a delivery that an operator has dropped."""

_MESSAGE_LEFT = "the room has a new id, and the message has none there"

_FOUND_LATER = deliveries.c.event_type == literal_column("'approval.requested'"), text(SENT_MESSAGES)
"""The deliveries that are found by their messages, for presses and reactions: each has its partial index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDelivery:
    """A delivery to insert: one part of one event for one target.

    With a `platform_id` it replaces that message, on platforms that can edit messages. `ordering_key` names
    its sequence (see `delivery.deliveries.ordering`); by default that of its conversation or endpoint.
    """

    account: str
    event: Event
    kind: RouteKind
    target: str
    destination: str
    part: int
    body: bytes
    platform_id: str | None = None
    ordering_key: str = ""
    id: str = field(default_factory=lambda: new_id("dlv"))

    @property
    def sequence(self) -> str:
        """The ordering key, or its default."""
        if self.ordering_key or self.kind is RouteKind.WEBHOOK:
            return self.ordering_key or self.destination
        return self.event.conversation or self.destination

    def as_due(self, *, armed_at: datetime) -> DueDelivery:
        """Return the delivery as a worker would read it before the first attempt."""
        return DueDelivery(
            delivery=Delivery(
                id=self.id,
                account=self.account,
                event_id=self.event.id,
                event_type=str(self.event.type),
                event_time=self.event.time,
                conversation=self.event.conversation or None,
                kind=str(self.kind),
                target=self.target,
                part=self.part,
                body=self.body,
                attempt=0,
                platform_id=self.platform_id,
                turn=self.event.turn,
            ),
            destination=self.destination,
            ordering_key=self.sequence,
            state=DeliveryState.PENDING,
            armed_at=armed_at,
            armed_from=0,
            next_at=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DueDelivery:
    """An unfinished delivery as the worker reads it; `is_abandoned`: its attempt was not made."""

    delivery: Delivery
    destination: str
    ordering_key: str
    state: DeliveryState
    armed_at: datetime
    armed_from: int
    next_at: datetime | None
    is_abandoned: bool = False


# Statements that every delivery needs are built once: building a statement takes longer than running it.
_OPEN_AT = (
    select(deliveries)
    .where(deliveries.c.destination == bindparam("at"), IS_OPEN)
    .order_by(deliveries.c.position)
    .limit(bindparam("most"))
)
_SENDING = select(deliveries).where(deliveries.c.state == str(DeliveryState.SENDING))
_DESTINATION_KEY = (deliveries.c.kind, deliveries.c.destination, deliveries.c.account)
_DUE_KEYS = (
    select(*_DESTINATION_KEY)
    .where(
        IS_OPEN,
        deliveries.c.updated_at < bindparam("before"),
        (deliveries.c.next_at.is_(None)) | (deliveries.c.next_at <= bindparam("now")),
    )
    .group_by(*_DESTINATION_KEY)
    .order_by(
        func.row_number().over(partition_by=deliveries.c.account, order_by=func.min(deliveries.c.position))
    )
    .limit(5000)
)
_DUE_AT = _OPEN_AT.where(deliveries.c.next_at.is_(None) | (deliveries.c.next_at <= bindparam("now")))


@cache
def _insert(dialect: str) -> Executable:
    return insert_on_conflict(deliveries, dialect).on_conflict_do_nothing(index_elements=IDENTITY)


async def create(connection: Connection, planned: Sequence[NewDelivery]) -> None:
    """Insert deliveries; one that already exists (same event, target and part) is not changed."""
    if planned:
        now = utc_now()
        rows = [new_row(one, state=DeliveryState.PENDING, attempts=0, now=now) for one in planned]
        await connection.execute(_insert(connection.dialect.name), rows)


def new_row(planned: NewDelivery, *, state: DeliveryState, attempts: int, now: datetime) -> dict[str, Any]:
    """Return the columns of a new delivery; the others are empty."""
    return {
        "id": planned.id,
        "account": planned.account,
        "event_id": planned.event.id,
        "event_type": str(planned.event.type),
        "event_time": planned.event.time,
        "conversation": planned.event.conversation or None,
        "turn": planned.event.turn,
        "kind": str(planned.kind),
        "target": planned.target,
        "destination": planned.destination,
        "ordering_key": planned.sequence,
        "part": planned.part,
        "body": planned.body,
        "platform_id": planned.platform_id,
        "state": str(state),
        "attempts": attempts,
        "armed_at": now,
        "armed_from": 0,
        "uncertain": False,
        "created_at": now,
        "updated_at": now,
    }


async def list_open(connection: Connection, destination: str, *, limit: int) -> list[DueDelivery]:
    """Return the unfinished deliveries of a destination, oldest first."""
    return await _list(connection, _OPEN_AT, {"at": destination, "most": limit})


async def list_due(connection: Connection, destination: str, now: datetime, limit: int) -> list[DueDelivery]:
    """Return the unfinished deliveries of a destination that may be attempted now, oldest first."""
    return await _list(connection, _DUE_AT, {"at": destination, "now": now, "most": limit})


async def list_in_flight(connection: Connection, ids: Sequence[str]) -> list[DueDelivery]:
    """Return those of the given deliveries whose last attempt has not ended."""
    return await _list(connection, _SENDING.where(deliveries.c.id.in_(ids)), {})


async def _list(connection: Connection, query: Executable, arguments: dict[str, object]) -> list[DueDelivery]:
    return [to_due(row) for row in await connection.execute(query, arguments)]


def to_due(row: Row[Any]) -> DueDelivery:
    """Return an unfinished delivery from its row."""
    fields = row._mapping  # noqa: SLF001 - SQLAlchemy's public name of it
    return DueDelivery(
        delivery=Delivery(
            id=fields["id"],
            account=fields["account"],
            event_id=fields["event_id"],
            event_type=fields["event_type"],
            event_time=fields["event_time"],
            conversation=fields["conversation"],
            kind=fields["kind"],
            target=fields["target"],
            part=fields["part"],
            body=fields["body"],
            attempt=fields["attempts"],
            platform_id=fields["platform_id"],
            uncertain=fields["uncertain"] or fields["state"] == DeliveryState.SENDING,
            turn=fields["turn"],
        ),
        destination=fields["destination"],
        ordering_key=fields["ordering_key"],
        state=DeliveryState(fields["state"]),
        armed_at=fields["armed_at"],
        armed_from=fields["armed_from"],
        next_at=fields["next_at"],
    )


async def set_state(
    connection: Connection, delivery: str, *, state: DeliveryState, error: str | None = None
) -> None:
    """Set the state of an unfinished delivery without an attempt."""
    values = {} if error is None else {"error": error[:2000]}
    await connection.execute(
        update(deliveries)
        .where(deliveries.c.id == delivery, IS_OPEN)
        .values(state=str(state), updated_at=utc_now(), **values)
    )


async def due_destinations(
    connection: Connection, *, now: datetime, before: datetime
) -> list[tuple[str, str, str]]:
    """Return each (kind, destination, account) with due deliveries that were last updated before `before`.

    The accounts take turns, so that the limit cuts off the longest backlog.
    """
    rows = await connection.execute(_DUE_KEYS, {"now": now, "before": before})
    return [(row[0], row[1], row[2]) for row in rows]


async def disable_endpoint(connection: Connection, endpoint: str, *, why: str) -> bool:
    """Disable a webhook endpoint and suppress its unfinished deliveries, which can be replayed later.

    Returns whether it was enabled: False if it is disabled or deleted already.
    """
    now = utc_now()
    enabled = update(endpoints).where(endpoints.c.id == endpoint, endpoints.c.disabled_at.is_(None))
    done = await connection.execute(enabled.values(disabled_at=now, disabled_why=why))
    await connection.execute(
        update(deliveries)
        .where(deliveries.c.destination == endpoint, IS_OPEN)
        .values(state=str(DeliveryState.SUPPRESSED), error=why, updated_at=now)
    )
    return done.rowcount > 0


async def requeue(connection: Connection, account: str, delivery: str) -> tuple[str, str] | None:
    """Make a delivery due with a new schedule, and mark its destination as alive.

    Returns (kind, destination); None if the account has no such delivery, or it is being sent now.
    """
    changed = await connection.execute(
        update(deliveries)
        .where(
            deliveries.c.id == delivery,
            deliveries.c.account == account,
            deliveries.c.state != str(DeliveryState.SENDING),
        )
        .values(due_again())
        .returning(deliveries.c.kind, deliveries.c.destination)
    )
    row = changed.first()
    if row is None:
        return None
    await _open_destination(connection, RouteKind(row[0]), row[1])
    return row[0], row[1]


async def send_again(connection: Connection, planned: Sequence[NewDelivery]) -> None:
    """Insert deliveries to one target; those that exist already and have ended are due again."""
    if not planned:
        return
    await create(connection, planned)
    await connection.execute(
        update(deliveries)
        .where(
            deliveries.c.event_id.in_([one.event.id for one in planned]),
            deliveries.c.target == planned[0].target,
            ~IS_OPEN,
        )
        .values(due_again())
    )
    await _open_destination(connection, planned[0].kind, planned[0].destination)


async def end_waits(connection: Connection, channel: str, *, changed_at: datetime) -> set[str]:
    """Make due what waits in a channel whose settings were changed since the attempt that failed.

    Returns the destinations. Their pauses stay.
    """
    now, beginning = utc_now(), json.dumps([channel]).removesuffix("]") + ","
    waiting = (IS_OPEN, deliveries.c.next_at > now, deliveries.c.updated_at < changed_at)
    changed = await connection.execute(
        update(deliveries)
        .where(*waiting, deliveries.c.destination.startswith(beginning, autoescape=True))
        .values(next_at=now)
        .returning(deliveries.c.destination)
    )
    return set(changed.scalars())


async def _open_destination(connection: Connection, kind: RouteKind, destination: str) -> None:
    """Let deliveries that were asked for be sent now; a platform's rate limit of a chat stays."""
    await destinations.mark_alive(connection, destination)
    if kind is RouteKind.WEBHOOK:
        await destinations.end_pause(connection, destination)


def due_again() -> dict[str, Any]:
    """Return the columns of a delivery that is due with a new schedule."""
    now = utc_now()
    return {
        "state": str(DeliveryState.PENDING),
        "next_at": None,
        "error": None,
        "uncertain": False,
        "armed_at": now,
        "armed_from": deliveries.c.attempts,
        "updated_at": now,
    }


async def drop(connection: Connection, account: str, delivery: str) -> bool:
    """Suppress a delivery at an operator's request; return whether there was one that is not delivered."""
    changed = await connection.execute(
        update(deliveries)
        .where(
            deliveries.c.id == delivery,
            deliveries.c.account == account,
            deliveries.c.state != str(DeliveryState.DELIVERED),
        )
        .values(state=str(DeliveryState.SUPPRESSED), error=DROPPED, updated_at=utc_now())
    )
    return changed.rowcount == 1


async def move_room(
    connection: Connection, *, old: Address, new: Address, keeps_messages: bool, conversations: Iterable[str]
) -> None:
    """Change the addresses of unfinished deliveries to a room, or to a thread, whose id has changed.

    If it `keeps_messages`, what was sent is found under the new id as well: all messages of `conversations`,
    and questions and answers of others. Else no waiting delivery names a message: its id may be another's.
    """
    changes = {} if keeps_messages else {"platform_id": None}
    if not keeps_messages:
        await _forget_messages(connection, old)
    sent = [*_FOUND_LATER, *(deliveries.c.conversation == one for one in sorted(conversations))]
    for which in (IS_OPEN, *(sent if keeps_messages else ())):
        there = (deliveries.c.destination == old.destination, which)
        targets = await connection.execute(select(deliveries.c.target).where(*there).distinct())
        for target in targets.scalars().all():
            if (moved := old.moved_target(target, new)) is not None:
                values = {"target": moved, "destination": Address.decode(moved).destination, **changes}
                await connection.execute(
                    update(deliveries).where(*there, deliveries.c.target == target).values(**values)
                )


async def _forget_messages(connection: Connection, room: Address) -> None:
    """Send what waits for a room as replies to no message, and no reactions: the ids name other messages."""
    there = (deliveries.c.destination == room.destination, IS_OPEN)
    rows = await connection.execute(select(deliveries.c.id, deliveries.c.body).where(*there))
    for row in rows.all():
        with suppress(BadPart):
            part = decode_part(row.body)
            if part.reaction is not None:
                await set_state(connection, row.id, state=DeliveryState.SUPPRESSED, error=_MESSAGE_LEFT)
            elif part.reply_to is not None:
                body = encode_part(replace(part, reply_to=None))
                await connection.execute(
                    update(deliveries).where(deliveries.c.id == row.id).values(body=body)
                )
