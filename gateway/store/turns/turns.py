"""SQL of turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import and_, bindparam, case, func, insert, literal_column, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.database.partial_indexes import has_others
from delivery.database.tables import UtcDateTime
from gateway.store.conversations.files import HAS_INCOMING
from gateway.store.tables import IS_OPEN, conversations, turns
from gateway.store.turn_state import OPEN, TurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One agent response to one trigger."""

    id: str
    account: str
    conversation: str
    agent: str
    trigger: str
    message: str | None = None
    job: str | None = None
    asker: str = ""
    input: str
    origin: Mapping[str, Any] | None = None
    context: Mapping[str, Any] | None = None
    request: Mapping[str, Any] | None = None
    state: TurnState = TurnState.QUEUED
    attempt: int = 0
    crashes: int = 0
    cancel: bool = False
    cancel_why: str | None = None
    mode: str | None = None
    merged_into: str | None = None
    model: str | None = None
    retried_as: str | None = None
    notify: bool = False
    output: str | None = None
    error: str | None = None
    paused: bytes | None = None
    runner: str | None = None
    usage: Mapping[str, Any] | None = None
    created_at: datetime
    next_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def is_delayed(self) -> bool:
        """Whether the turn waits for a retry."""
        return self.state is TurnState.QUEUED and self.next_at is not None and self.next_at > utc_now()

    @property
    def failure(self) -> str | None:
        """Why the turn ended without its answer; None in the other states."""
        if self.state is TurnState.FAILED:
            return self.error or "the turn failed"
        return "the turn was cancelled" if self.state is TurnState.CANCELLED else None


TURN_COLUMNS = [turns.c[name] for name in Turn.__dataclass_fields__]


def to_turn(row: Mapping[Any, Any]) -> Turn:
    """Return a row with TURN_COLUMNS as a turn."""
    return Turn(**{**row, "state": TurnState(row["state"])})


# Statements of the hot path are built once: building one takes longer than executing it.
HANDED_OVER = "handed over"
"""Cancel reason of turns of a conversation that a person handles."""

_OWN_CONVERSATION = conversations.c.id == bindparam("of")
_IS_HANDED_OVER = select(1).where(_OWN_CONVERSATION, conversations.c.handover_by.is_not(None)).exists()
_INSERT = (
    insert(turns)
    .values(
        cancel=_IS_HANDED_OVER,
        cancel_why=case((_IS_HANDED_OVER, literal_column(f"'{HANDED_OVER}'")), else_=None),
        model=select(conversations.c.model).where(_OWN_CONVERSATION).scalar_subquery(),
    )
    .returning(turns.c.cancel, turns.c.cancel_why, turns.c.model)
)
_IS_DELAYED_FOLLOW_UP = and_(
    turns.c.trigger == "job",
    turns.c.state == str(TurnState.QUEUED),
    turns.c.next_at > bindparam("now"),
    turns.c.paused.is_(None),
    turns.c.cancel.is_(False),
)
_NEXT_TURN = (
    select(*TURN_COLUMNS)
    .where(turns.c.conversation == bindparam("of"), IS_OPEN)
    .order_by(case((_IS_DELAYED_FOLLOW_UP, 1), else_=0), turns.c.position)
    .limit(1)
)
_GET = select(*TURN_COLUMNS).where(turns.c.id == bindparam("of"), turns.c.account == bindparam("whose"))
_LIST_OPEN = (
    select(*TURN_COLUMNS).where(turns.c.conversation == bindparam("of"), IS_OPEN).order_by(turns.c.position)
)
_COUNT_WAITING = (
    select(func.count())
    .select_from(turns)
    .where(turns.c.conversation == bindparam("of"), IS_OPEN, turns.c.cancel.is_(False))
)
_FENCE_IS_CURRENT = select(conversations.c.fence).where(
    conversations.c.id == bindparam("held")
).scalar_subquery() == bindparam("fence")
_UPDATE_OWNED = update(turns).where(turns.c.id == bindparam("turn"), IS_OPEN, _FENCE_IS_CURRENT)
_CLAIM = _UPDATE_OWNED.values(
    state=str(TurnState.RUNNING),
    attempt=turns.c.attempt + 1,
    crashes=bindparam("crashed"),
    runner=bindparam("by"),
    started_at=func.coalesce(turns.c.started_at, bindparam("now", type_=UtcDateTime)),
).returning(turns.c.input, HAS_INCOMING.label("has_incoming"))
_SETTLE = _UPDATE_OWNED.values(
    state=bindparam("to"),
    output=bindparam("said"),
    error=bindparam("failed"),
    usage=bindparam("used"),
    paused=None,
    runner=None,
    finished_at=bindparam("now"),
).returning(has_others(turns, "conversation", OPEN))


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledTurn:
    """A settled turn, and whether another one of its conversation was open; later ones wake the worker."""

    has_successor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedAttempt:
    """What an attempt starts with: the turn's current input, and whether files or notes about some came."""

    input: str
    has_incoming: bool


async def insert_turn(connection: Connection, turn: Turn) -> Turn:
    """Queue a turn and return it as stored: with the conversation's model.

    While a person handles the conversation it is cancelled before it begins.
    """
    inserted = await connection.execute(
        _INSERT,
        {
            "id": turn.id,
            "account": turn.account,
            "conversation": turn.conversation,
            "agent": turn.agent,
            "trigger": turn.trigger,
            "message": turn.message,
            "job": turn.job,
            "asker": turn.asker,
            "input": turn.input,
            "origin": dict(turn.origin) if turn.origin is not None else None,
            "context": dict(turn.context) if turn.context is not None else None,
            "request": dict(turn.request) if turn.request is not None else None,
            "state": str(turn.state),
            "attempt": 0,
            "crashes": 0,
            "of": turn.conversation,
            "mode": turn.mode,
            "notify": turn.notify,
            "created_at": turn.created_at,
        },
    )
    return replace(turn, **inserted.mappings().one())


async def get(connection: Connection, account: str, turn: str) -> Turn | None:
    """Return an account's turn."""
    found = (await connection.execute(_GET, {"of": turn, "whose": account})).mappings().first()
    return to_turn(found) if found else None


async def next_turn(connection: Connection, conversation: str) -> Turn | None:
    """Return the next turn of a conversation: the oldest open one.

    A job's follow-up turn that waits for a retry and has no progress yet lets all others pass.
    """
    rows = await connection.execute(_NEXT_TURN, {"of": conversation, "now": utc_now()})
    found = rows.mappings().first()
    return to_turn(found) if found else None


async def list_open(connection: Connection, conversation: str) -> list[Turn]:
    """Return the turns of a conversation that have not ended, in order."""
    rows = await connection.execute(_LIST_OPEN, {"of": conversation})
    return [to_turn(row) for row in rows.mappings()]


async def list_open_ids(
    connection: Connection, account: str, *, conversation: str | None = None
) -> dict[str, str]:
    """Return the turns of an account, or of one of its conversations, that have not ended, in order.

    The values are their conversations.
    """
    query = select(turns.c.id, turns.c.conversation).where(turns.c.account == account, IS_OPEN)
    if conversation is not None:
        query = query.where(turns.c.conversation == conversation)
    rows = await connection.execute(query.order_by(turns.c.conversation, turns.c.position))
    return {row.id: row.conversation for row in rows}


async def count_waiting(connection: Connection, conversation: str) -> int:
    """Return how many turns a new one waits for: those that have not ended and were not cancelled.

    A cancelled turn takes no place in the queue, although its worker may not have ended it yet.
    """
    counted = await connection.execute(_COUNT_WAITING, {"of": conversation})
    return counted.scalar_one()


def _fence_is_current(conversation: str, fence: int) -> Any:
    held = select(conversations.c.fence).where(conversations.c.id == conversation).scalar_subquery()
    return held == fence


async def claim(
    connection: Connection, turn: Turn, *, fence: int, worker_id: str, crashes: int
) -> StartedAttempt | None:
    """Start an attempt; returns what it starts with, or None when the fence is no longer current."""
    claimed = await connection.execute(
        _CLAIM,
        {
            "turn": turn.id,
            "held": turn.conversation,
            "fence": fence,
            "crashed": crashes,
            "by": worker_id,
            "now": utc_now(),
        },
    )
    row = claimed.first()
    return None if row is None else StartedAttempt(input=str(row[0]), has_incoming=bool(row[1]))


async def quarantine(
    connection: Connection,
    turn: Turn,
    *,
    fence: int,
    crashes: int,
    suspected_by: str | None = None,
    not_before: datetime | None = None,
) -> bool:
    """Queue a suspect turn to run alone and store its points; False when the fence is not current.

    `suspected_by` is the process that a crash of another one made suspect it. When another process finds the
    turn in the queue with that name, the named one has died while the turn waited.
    """
    changed = await connection.execute(
        update(turns)
        .where(turns.c.id == turn.id, IS_OPEN, _fence_is_current(turn.conversation, fence))
        .values(state=str(TurnState.QUEUED), crashes=crashes, runner=suspected_by, next_at=not_before)
    )
    return changed.rowcount == 1


async def settle(
    connection: Connection,
    turn: Turn,
    *,
    fence: int,
    state: TurnState,
    output: str | None = None,
    error: str | None = None,
    usage: Mapping[str, Any] | None = None,
) -> SettledTurn | None:
    """Set a turn's final state, once; returns None when it has ended or the fence is not current."""
    settled = await connection.execute(
        _SETTLE,
        {
            "turn": turn.id,
            "held": turn.conversation,
            "fence": fence,
            "to": str(state),
            "said": output,
            "failed": error,
            "used": dict(usage) if usage else None,
            "now": utc_now(),
        },
    )
    row = settled.first()
    return None if row is None else SettledTurn(has_successor=bool(row[0]))


async def save_progress(connection: Connection, turn: Turn, *, fence: int, state: bytes) -> bool:
    """Store an agent's progress within a turn; returns False when the fence is not current."""
    saved = await connection.execute(
        update(turns)
        .where(turns.c.id == turn.id, _fence_is_current(turn.conversation, fence))
        .values(paused=state)
    )
    return saved.rowcount == 1


async def get_progress(connection: Connection, turn: str) -> bytes | None:
    """Return the progress that a turn's agent saved last."""
    found = await connection.execute(select(turns.c.paused).where(turns.c.id == turn))
    return found.scalar_one_or_none()


async def pause(connection: Connection, turn: Turn, *, fence: int, state: bytes) -> bool:
    """Set a running turn to waiting for approvals; returns False when the fence is not current."""
    paused = await connection.execute(
        update(turns)
        .where(
            turns.c.id == turn.id,
            turns.c.state == str(TurnState.RUNNING),
            _fence_is_current(turn.conversation, fence),
        )
        .values(state=str(TurnState.WAITING), paused=state, runner=None)
    )
    return paused.rowcount == 1


async def lock(connection: Connection, turn: str) -> None:
    """Let no other transaction change a turn, or decide one of its approvals, until this one ends.

    It comes before locks of the turn's approvals, as at the end of a turn.
    """
    await connection.execute(select(turns.c.id).where(turns.c.id == turn).with_for_update(key_share=True))


async def requeue(connection: Connection, turn: str, *, from_state: TurnState) -> bool:
    """Put a waiting or released turn back into the queue at its old position."""
    changed = await connection.execute(
        update(turns)
        .where(turns.c.id == turn, turns.c.state == str(from_state))
        .values(state=str(TurnState.QUEUED), runner=None)
    )
    return changed.rowcount == 1


async def request_cancel(connection: Connection, turn: str, *, reason: str = "cancelled") -> TurnState | None:
    """Request cancellation; returns the turn's state, or None when the turn has ended.

    The first reason is kept.
    """
    changed = await connection.execute(
        update(turns)
        .where(turns.c.id == turn, IS_OPEN)
        .values(cancel=True, cancel_why=func.coalesce(turns.c.cancel_why, reason))
        .returning(turns.c.state)
    )
    state = changed.scalar_one_or_none()
    return TurnState(state) if state else None


async def cancel_reason(connection: Connection, turn: str) -> str:
    """Return the reason of a cancellation request."""
    found = await connection.execute(select(turns.c.cancel_why).where(turns.c.id == turn))
    return found.scalar_one_or_none() or "cancelled"


async def list_cancelled(connection: Connection, running: list[str]) -> list[str]:
    """Return which of these turns have a cancellation request."""
    rows = await connection.execute(
        select(turns.c.id).where(turns.c.id.in_(running), turns.c.cancel.is_(True))
    )
    return [row[0] for row in rows]


async def list_ended(connection: Connection, ids: Sequence[str]) -> list[str]:
    """Return which of these turns have ended."""
    rows = await connection.execute(select(turns.c.id).where(turns.c.id.in_(ids), turns.c.state.not_in(OPEN)))
    return [row[0] for row in rows]


async def count_by_state(connection: Connection) -> dict[str, int]:
    """Return how many turns are in each unfinished state, for the metrics."""
    rows = await connection.execute(
        select(turns.c.state, func.count()).where(IS_OPEN).group_by(turns.c.state)
    )
    return {row[0]: row[1] for row in rows}
