"""SQL of where turns come from: the job whose end one answers, the turn that started the job, and so on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from delivery.database.engine import Connection
from delivery.events import outbox
from delivery.events.event import EventType
from gateway.store.tables import jobs, turns
from gateway.store.turns.traces import MAX_TURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The origin of a turn: the first turn of its chain, and the job whose end it answers.

    `traceparent` is the caller's span to which the whole chain belongs.
    """

    account: str
    root: str
    turn: str
    job: str | None = None
    traceparent: str | None = None


_retry = turns.alias("retry")
_JOB = func.coalesce(turns.c.job, _retry.c.job)
_CAUSE = (
    select(turns.c.account, _JOB.label("job"), jobs.c.turn.label("before"))
    .select_from(turns)
    .outerjoin(_retry, _retry.c.id == turns.c.retried_as)
    .outerjoin(jobs, jobs.c.id == _JOB)
)


async def get_for_turn(connection: Connection, turn: str) -> Lineage | None:
    """Return a turn's lineage, None when there is no such turn; a chain that is too long is cut."""
    found = await _cause(connection, turn)
    if found is None:
        return None
    root, cause = turn, found
    for _ in range(MAX_TURNS):
        before = await _cause(connection, cause.before) if cause.before else None
        if before is None:
            break
        root, cause = cause.before, before
    queued = await outbox.list_of_type(connection, root, EventType.TURN_QUEUED)
    traceparent = queued[0].data.get("traceparent") if queued else None
    return Lineage(
        account=found.account,
        root=root,
        turn=turn,
        job=found.job,
        traceparent=traceparent if isinstance(traceparent, str) else None,
    )


async def _cause(connection: Connection, turn: str) -> Any:
    return (await connection.execute(_CAUSE.where(turns.c.id == turn))).first()


async def get_follow_up_turn(connection: Connection, job: str) -> str | None:
    """Return the id of the turn that a job's end has queued."""
    found = await connection.execute(select(turns.c.id).where(turns.c.job == job))
    return found.scalar_one_or_none()
