"""SQL that lists turns for an operator, delays a turn for a retry, and marks failed ones as retried."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from gateway.store.tables import messages, turns
from gateway.store.turn_state import DEAD_LETTER_PREFIX, TurnState
from gateway.store.turns.turns import Turn

_COLUMNS = [turns.c[name] for name in Turn.__dataclass_fields__]


async def list_for_account(
    connection: Connection,
    account: str,
    *,
    after: str | None = None,
    limit: int = 50,
    conversation: str | None = None,
    state: str | None = None,
    dead: bool = False,
) -> list[Turn]:
    """Return an account's turns, newest first, older than `after`; `dead`: dead-lettered and not retried."""
    query = select(*_COLUMNS).where(turns.c.account == account)
    if after:
        query = query.where(
            turns.c.position < select(turns.c.position).where(turns.c.id == after).scalar_subquery()
        )
    if conversation:
        query = query.where(turns.c.conversation == conversation)
    if state:
        query = query.where(turns.c.state == state)
    if dead:
        query = query.where(
            turns.c.state == str(TurnState.FAILED),
            turns.c.error.startswith(DEAD_LETTER_PREFIX),
            turns.c.retried_as.is_(None),
        )
    rows = await connection.execute(query.order_by(turns.c.position.desc()).limit(limit))
    return [Turn(**{**row, "state": TurnState(row["state"])}) for row in rows.mappings()]


async def mark_retried(connection: Connection, failed: Turn, new: str) -> bool:
    """Link a failed turn to the turn that retries it, once.

    Its user messages move to the new turn, and so does its job, which has one follow-up turn at a time.
    """
    changed = await connection.execute(
        update(turns)
        .where(turns.c.id == failed.id, turns.c.state == str(TurnState.FAILED), turns.c.retried_as.is_(None))
        .values(retried_as=new, job=None)
    )
    if changed.rowcount != 1:
        return False
    await connection.execute(
        update(messages).where(messages.c.turn == failed.id, messages.c.role == "user").values(turn=new)
    )
    return True


async def delay(connection: Connection, turn: str, *, error: str, until: datetime) -> bool:
    """Put a running turn back into the queue for a retry, with the reason for it."""
    changed = await connection.execute(
        update(turns)
        .where(turns.c.id == turn, turns.c.state == str(TurnState.RUNNING))
        .values(state=str(TurnState.QUEUED), runner=None, next_at=until, error=error)
    )
    return changed.rowcount == 1


async def retry_now(connection: Connection, turn: Turn) -> bool:
    """End the wait of a turn for its next attempt; returns False if it does not wait."""
    now = utc_now()
    changed = await connection.execute(
        update(turns)
        .where(turns.c.id == turn.id, turns.c.state == str(TurnState.QUEUED), turns.c.next_at > now)
        .values(next_at=now)
    )
    return changed.rowcount == 1


async def last_failed(connection: Connection, conversation: str) -> Turn | None:
    """Return the newest turn of a conversation that failed and was not retried."""
    rows = await connection.execute(
        select(*_COLUMNS)
        .where(
            turns.c.conversation == conversation,
            turns.c.state == str(TurnState.FAILED),
            turns.c.retried_as.is_(None),
        )
        .order_by(turns.c.position.desc())
        .limit(1)
    )
    row = rows.mappings().first()
    return Turn(**{**row, "state": TurnState(row["state"])}) if row else None
