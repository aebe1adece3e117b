"""SQL that lists turns without their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import case, select

from delivery.database.engine import Connection
from gateway.store.tables import turns


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTurn:
    """A turn with the state and the end of the turn that answers it, which is mostly the same."""

    id: str
    state: str
    finished_at: datetime | None


_ANSWERS = turns.alias()


async def list_newest(
    connection: Connection, account: str, *, conversation: str | None, limit: int
) -> Sequence[ListedTurn]:
    """Return an account's newest turns, of one conversation if it is given, newest first."""
    is_merged = turns.c.merged_into.is_not(None) & _ANSWERS.c.id.is_not(None)
    in_scope = [turns.c.account == account]
    if conversation is not None:
        in_scope.append(turns.c.conversation == conversation)
    query = (
        select(
            turns.c.id,
            case((is_merged, _ANSWERS.c.state), else_=turns.c.state).label("state"),
            case((is_merged, _ANSWERS.c.finished_at), else_=turns.c.finished_at).label("finished_at"),
        )
        .select_from(turns.outerjoin(_ANSWERS, _ANSWERS.c.id == turns.c.merged_into))
        .where(*in_scope)
        .order_by(turns.c.position.desc())
        .limit(limit)
    )
    return [ListedTurn(**row) for row in (await connection.execute(query)).mappings()]
