"""SQL of conversations' histories: one row for each turn, in order."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, insert, select

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from gateway.store.history_tables import histories
from gateway.store.tables import messages

_INSERT = insert(histories).returning(histories.c.position)
_AFTER = (
    select(histories.c.position, histories.c.body)
    .where(histories.c.conversation == bindparam("of"), histories.c.position > bindparam("after"))
    .order_by(histories.c.position)
)
_DELETE_BEFORE = delete(histories).where(
    histories.c.conversation == bindparam("of"), histories.c.position < bindparam("before")
)


async def is_unused(connection: Connection, conversation: str) -> bool:
    """Return whether a conversation has had no turn: it may have a history that a client began it with."""
    said = select(messages.c.id).where(messages.c.conversation == conversation)
    known = select(histories.c.position).where(
        histories.c.conversation == conversation, histories.c.turn.is_not(None)
    )
    return not (await connection.execute(select(said.exists() | known.exists()))).scalar_one()


async def delete_all(connection: Connection, conversation: str) -> None:
    """Delete a conversation's history."""
    await connection.execute(delete(histories).where(histories.c.conversation == conversation))


async def append(
    connection: Connection, *, account: str, conversation: str, turn: str | None, body: bytes
) -> int:
    """Insert what a turn adds, after all earlier rows of its conversation; returns its position."""
    row = {
        "account": account,
        "conversation": conversation,
        "turn": turn,
        "body": body,
        "created_at": utc_now(),
    }
    return int((await connection.execute(_INSERT, row)).scalar_one())


async def list_after(connection: Connection, conversation: str, position: int = 0) -> list[tuple[int, bytes]]:
    """Return (position, body) of a conversation's rows after a position, in order."""
    rows = await connection.execute(_AFTER, {"of": conversation, "after": position})
    return [(row[0], row[1]) for row in rows]


async def list_with_turns(connection: Connection, conversation: str) -> list[tuple[str | None, bytes]]:
    """Return (turn, body) of all rows of a conversation, in order."""
    rows = await connection.execute(
        select(histories.c.turn, histories.c.body)
        .where(histories.c.conversation == conversation)
        .order_by(histories.c.position)
    )
    return [(row.turn, row.body) for row in rows]


async def delete_before(connection: Connection, conversation: str, position: int) -> None:
    """Delete a conversation's rows before a position, which a later row replaces."""
    await connection.execute(_DELETE_BEFORE, {"of": conversation, "before": position})
