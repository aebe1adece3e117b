"""SQL of a conversation's queue: merging messages into queued turns and into the running one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, func, insert, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from gateway.store.tables import IS_OPEN, inputs, turns
from gateway.store.turn_state import OPEN, TurnState
from gateway.store.turns.turns import TURN_COLUMNS, Turn, to_turn

MAX_WOKEN = 5000
"""Conversations that are woken at once."""

_ITSELF = turns.alias()
_ITS_POSITION = select(_ITSELF.c.position).where(_ITSELF.c.id == bindparam("turn")).scalar_subquery()
_STEERING = (
    select(*TURN_COLUMNS)
    .where(
        turns.c.conversation == bindparam("of"),
        IS_OPEN,
        turns.c.id != bindparam("running"),
        turns.c.state == str(TurnState.QUEUED),
        turns.c.attempt == 0,
        turns.c.cancel.is_(False),
        turns.c.mode == "steer",
        turns.c.trigger == "message",
    )
    .order_by(turns.c.position)
)
_NEXT_CANCELLED = (
    select(*TURN_COLUMNS)
    .where(
        turns.c.conversation == bindparam("of"),
        IS_OPEN,
        turns.c.state == str(TurnState.QUEUED),
        turns.c.cancel.is_(True),
    )
    .order_by(turns.c.position)
    .limit(1)
)
_COUNT_BEFORE = (
    select(func.count())
    .select_from(turns)
    .where(turns.c.conversation == bindparam("of"), IS_OPEN, turns.c.position < _ITS_POSITION)
)
_WITH_WORK = (
    select(turns.c.conversation, turns.c.account)
    .where(
        IS_OPEN,
        (turns.c.state == str(TurnState.QUEUED)) | (turns.c.state == str(TurnState.RUNNING)),
        turns.c.next_at.is_(None) | (turns.c.next_at <= bindparam("now")),
    )
    .group_by(turns.c.conversation, turns.c.account)
    .order_by(func.row_number().over(partition_by=turns.c.account, order_by=func.min(turns.c.position)))
    .limit(MAX_WOKEN)
)


async def set_input(
    connection: Connection,
    turn: Turn,
    text: str,
    *,
    notify: bool = False,
    context: Mapping[str, Any] | None = None,
) -> bool:
    """Change the input of a queued turn; returns False when it was claimed or changed in between.

    A `context` replaces the turn's.
    """
    changed = await connection.execute(
        update(turns)
        .where(
            turns.c.id == turn.id,
            turns.c.state == str(TurnState.QUEUED),
            turns.c.attempt == 0,
            turns.c.cancel.is_(False),
            turns.c.input == turn.input,
        )
        .values(input=text, notify=turn.notify or notify, context=context or turn.context)
    )
    return changed.rowcount == 1


async def next_cancelled(connection: Connection, conversation: str) -> Turn | None:
    """Return the first turn in line that was cancelled, or None."""
    found = (await connection.execute(_NEXT_CANCELLED, {"of": conversation})).mappings().first()
    return to_turn(found) if found else None


async def queue_position(connection: Connection, turn: Turn) -> int | None:
    """Return how many turns of its conversation end before an open one; None when it has ended."""
    if turn.state not in OPEN:
        return None
    counted = await connection.execute(_COUNT_BEFORE, {"of": turn.conversation, "turn": turn.id})
    return int(counted.scalar_one())


async def list_steered(connection: Connection, turn: str) -> list[str]:
    """Return the messages a turn received while it ran, in order."""
    rows = await connection.execute(
        select(inputs.c.text).where(inputs.c.turn == turn).order_by(inputs.c.place)
    )
    return [row[0] for row in rows]


async def list_steering(connection: Connection, turn: Turn) -> list[Turn]:
    """Return the turns in line that are meant for the one that runs."""
    rows = (await connection.execute(_STEERING, {"of": turn.conversation, "running": turn.id})).mappings()
    return [to_turn(row) for row in rows]


async def merge(connection: Connection, turn: Turn, into: Turn, *, place: int, text: str) -> bool:
    """Merge a queued turn into the running one, which gets `text`; False when it was claimed or changed."""
    ended = await connection.execute(
        update(turns)
        .where(
            turns.c.id == turn.id,
            turns.c.state == str(TurnState.QUEUED),
            turns.c.attempt == 0,
            turns.c.cancel.is_(False),
            turns.c.input == turn.input,
        )
        .values(state=str(TurnState.COMPLETED), merged_into=into.id, output="", finished_at=utc_now())
    )
    if ended.rowcount != 1:
        return False
    await connection.execute(
        insert(inputs).values(turn=into.id, place=place, account=into.account, source=turn.id, text=text)
    )
    return True


async def list_conversations_with_work(connection: Connection) -> list[tuple[str, str]]:
    """Return the (conversation, account) pairs with a queued turn that is due, or a running one.

    The accounts take turns, so that the limit cuts off the longest backlog.
    """
    rows = await connection.execute(_WITH_WORK, {"now": utc_now()})
    return [(row[0], row[1]) for row in rows]


async def requeue_waiting_of(connection: Connection, account: str, agent: str) -> None:
    """Put the turns of an agent that wait for people back into the queue: the agent is deleted."""
    await connection.execute(
        update(turns)
        .where(
            turns.c.account == account,
            turns.c.agent == agent,
            IS_OPEN,
            turns.c.state == str(TurnState.WAITING),
        )
        .values(state=str(TurnState.QUEUED), runner=None)
    )
