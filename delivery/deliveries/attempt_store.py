"""SQL of attempts: the claims before sends, and their outcomes. Many are recorded with few statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, insert, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.database.partial_indexes import has_others
from delivery.database.tables import IS_OPEN, OPEN_DELIVERIES, attempts, deliveries
from delivery.deliveries import ordering
from delivery.deliveries.attempt import DeliveryState, Transition
from delivery.deliveries.port import Outcome
from delivery.deliveries.store import DueDelivery, NewDelivery
from delivery.errors import LeaseLost

# Statements that every delivery needs are built once: building a statement takes longer than running it.
_FIRST_ATTEMPT_AT = select(func.min(attempts.c.started_at)).where(
    attempts.c.delivery == bindparam("of"), attempts.c.number > bindparam("after")
)
_BEGIN = (
    update(deliveries)
    .where(
        deliveries.c.id == bindparam("delivery"),
        deliveries.c.state == bindparam("found_state"),
        deliveries.c.attempts == bindparam("found_attempts"),
    )
    .values(
        state=str(DeliveryState.SENDING),
        attempts=bindparam("number"),
        body=bindparam("sent"),
        uncertain=bindparam("unsure"),
        updated_at=bindparam("now"),
    )
)
_CURRENT_STATES = select(deliveries.c.id, deliveries.c.state, deliveries.c.updated_at).where(
    deliveries.c.id.in_(bindparam("all_of", expanding=True))
)
_ATTEMPT = insert(attempts)
_SETTLE = (
    update(deliveries)
    .where(deliveries.c.id == bindparam("delivery"))
    .values(
        state=bindparam("to"),
        next_at=bindparam("due_at"),
        updated_at=bindparam("now"),
        error=bindparam("failed"),
        uncertain=bindparam("unsure"),
        platform_id=func.coalesce(bindparam("confirmed"), deliveries.c.platform_id),
    )
    .returning(has_others(deliveries, "destination", OPEN_DELIVERIES))
)
_SETTLE_DELIVERED = _SETTLE.where(IS_OPEN)
_SETTLE_OTHERWISE = _SETTLE.where(
    deliveries.c.state == str(DeliveryState.SENDING), deliveries.c.attempts == bindparam("number")
)
_SETTLE_ALL_DELIVERED = (
    update(deliveries)
    .where(deliveries.c.id.in_(bindparam("all_of", expanding=True)), IS_OPEN)
    .values(
        state=str(DeliveryState.DELIVERED),
        next_at=None,
        updated_at=bindparam("now"),
        error=None,
        uncertain=False,
    )
    .returning(deliveries.c.id)
)
_ENDED = (
    update(attempts)
    .where(attempts.c.delivery == bindparam("of"), attempts.c.number == bindparam("attempt_number"))
    .values(
        duration_ms=bindparam("duration"),
        outcome=bindparam("outcome_kind"),
        status=bindparam("status_code"),
        detail=bindparam("detail_text"),
        excerpt=bindparam("excerpt_text"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An attempt with its outcome and the transition to record; `delivery` is an id."""

    delivery: str
    number: int
    outcome: Outcome
    transition: Transition
    duration_ms: float

    @property
    def is_plain_success(self) -> bool:
        """Whether the delivery was accepted, without an id of the platform to store."""
        return self.transition.state is DeliveryState.DELIVERED and self.outcome.platform_id is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempts:
    """The ids of the deliveries whose state was changed.

    `has_others`: whether more was unfinished at the destination; later deliveries wake the worker.
    """

    changed: frozenset[str]
    has_others: bool


async def first_attempt_at(connection: Connection, delivery: str, *, after: int = 0) -> datetime | None:
    """Return when the first attempt of a delivery after number `after` began, or None before it."""
    arguments = {"of": delivery, "after": after}
    moment: datetime | None = (await connection.execute(_FIRST_ATTEMPT_AT, arguments)).scalar_one()
    return moment


async def begin_attempts(
    connection: Connection, dues: Sequence[DueDelivery], *, now: datetime, bodies: Mapping[str, bytes]
) -> Sequence[DueDelivery]:
    """Mark deliveries as being sent with these bodies (by id), and record an attempt of each.

    Returns them without those that have changed since they were read: a request has dropped, retried or
    deleted them. The number of an attempt is one more than those before it. Raises LeaseLost if another
    worker is sending one of them.
    """
    claims = [
        {
            "delivery": due.delivery.id,
            "found_state": str(due.state),
            "found_attempts": due.delivery.attempt,
            "number": due.delivery.attempt + 1,
            "sent": bodies[due.delivery.id],
            "unsure": due.delivery.uncertain,
            "now": now,
        }
        for due in dues
    ]
    begun = await connection.execute(_BEGIN, claims)
    if begun.rowcount != len(dues):
        dues = await _select_begun(connection, dues, now=now, count=begun.rowcount)
    if dues:
        await connection.execute(_ATTEMPT, [_begun(due, now) for due in dues])
    return dues


async def _select_begun(
    connection: Connection, dues: Sequence[DueDelivery], *, now: datetime, count: int
) -> Sequence[DueDelivery]:
    """Return those deliveries, `count` of them, that this transaction has just marked as being sent."""
    found = {
        row.id: row
        for row in await connection.execute(_CURRENT_STATES, {"all_of": [due.delivery.id for due in dues]})
        if row.state == DeliveryState.SENDING
    }
    begun = [due for due in dues if due.delivery.id in found and found[due.delivery.id].updated_at == now]
    if len(begun) != len(found) or len(begun) != count:
        raise LeaseLost(f"another worker is sending one of {', '.join(due.delivery.id for due in dues)}")
    return begun


async def begin_first_attempt(
    connection: Connection, planned: NewDelivery, *, bot: str, now: datetime
) -> DueDelivery | None:
    """Insert a delivery as being sent, and record its first attempt; None: see `ordering.create_sending`."""
    due = await ordering.create_sending(connection, planned, bot=bot, now=now)
    if due is not None:
        await connection.execute(_ATTEMPT, _begun(due, now))
    return due


def _begun(due: DueDelivery, now: datetime) -> dict[str, object]:
    return {
        "delivery": due.delivery.id,
        "account": due.delivery.account,
        "number": due.delivery.attempt + 1,
        "started_at": now,
    }


async def end_attempts(connection: Connection, ended: Sequence[EndedAttempt]) -> RecordedAttempts:
    """Record the outcomes of attempts at one destination, and the deliveries' new states.

    A worker that was frozen finds a newer state and does not change it, unless its attempt has succeeded and
    the delivery is unfinished.
    """
    plain = [one.delivery for one in ended if one.is_plain_success]
    together = plain if len(plain) > 1 else []
    changed, has_others = await _settle_all_delivered(connection, together), bool(together)
    for one in ended:
        if one.delivery not in together:
            others = await _settle(connection, one)
            changed |= {one.delivery} if others is not None else set()
            has_others = has_others or others is not False
    await connection.execute(_ENDED, [_log_entry(one) for one in ended])
    return RecordedAttempts(changed=frozenset(changed), has_others=has_others)


async def _settle_all_delivered(connection: Connection, ids: Sequence[str]) -> set[str]:
    if not ids:
        return set()
    rows = await connection.execute(_SETTLE_ALL_DELIVERED, {"all_of": list(ids), "now": utc_now()})
    return set(rows.scalars())


async def _settle(connection: Connection, ended: EndedAttempt) -> bool | None:
    """Store the new state; return whether more is unfinished at the destination, None if nothing changed."""
    transition, outcome = ended.transition, ended.outcome
    delivered = transition.state is DeliveryState.DELIVERED
    arguments: dict[str, object] = {
        "delivery": ended.delivery,
        "to": str(transition.state),
        "due_at": transition.next_at,
        "now": utc_now(),
        "failed": None if delivered else outcome.detail[:2000],
        "unsure": transition.uncertain,
        "confirmed": outcome.platform_id,
    }
    if not delivered:
        arguments["number"] = ended.number
    rows = await connection.execute(_SETTLE_DELIVERED if delivered else _SETTLE_OTHERWISE, arguments)
    row = rows.first()
    return None if row is None else bool(row[0])


def _log_entry(ended: EndedAttempt) -> dict[str, object]:
    return {
        "of": ended.delivery,
        "attempt_number": ended.number,
        "duration": ended.duration_ms,
        "outcome_kind": str(ended.outcome.kind),
        "status_code": ended.outcome.status,
        "detail_text": ended.outcome.detail[:2000],
        "excerpt_text": ended.outcome.excerpt[:1024],
    }
