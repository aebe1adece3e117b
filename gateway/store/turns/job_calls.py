"""SQL of the tool calls that are background jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select, update

from delivery.database.engine import Connection
from gateway.store.job_state import JobState
from gateway.store.sandbox_tables import job_calls
from gateway.store.tables import jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCall:
    """A tool call that is a job. `attempt` is 0 until the call begins for the first time.

    `server` is the MCP server of the tool. `repeatable`: a repeat does no harm.
    """

    job: str
    account: str
    tool: str
    server: str | None
    args: Mapping[str, Any]
    repeatable: bool
    attempt: int


_COLUMNS = [job_calls.c[name] for name in JobCall.__dataclass_fields__]

_RUNNING = (
    select(*_COLUMNS)
    .join(jobs, jobs.c.id == job_calls.c.job)
    .where(jobs.c.state == str(JobState.RUNNING))
    .order_by(jobs.c.created_at, jobs.c.id)
    .limit(1000)
)


async def insert_call(connection: Connection, call: JobCall) -> None:
    """Record the call of a job."""
    values = {name: getattr(call, name) for name in JobCall.__dataclass_fields__}
    await connection.execute(insert(job_calls).values(**values | {"args": dict(call.args)}))


async def list_running(connection: Connection) -> list[JobCall]:
    """Return the calls whose jobs are running, oldest first."""
    found = await connection.execute(_RUNNING)
    return [JobCall(**dict(row)) for row in found.mappings()]


async def get_running(connection: Connection, job: str) -> JobCall | None:
    """Return the call of a job that is running now, or None."""
    found = await connection.execute(
        select(*_COLUMNS)
        .join(jobs, jobs.c.id == job_calls.c.job)
        .where(job_calls.c.job == job, jobs.c.state == str(JobState.RUNNING))
    )
    row = found.mappings().first()
    return JobCall(**dict(row)) if row is not None else None


async def begin(connection: Connection, call: JobCall) -> bool:
    """Count a beginning of a call; returns False if another process has done so since it was read."""
    begun = await connection.execute(
        update(job_calls)
        .where(job_calls.c.job == call.job, job_calls.c.attempt == call.attempt)
        .values(attempt=call.attempt + 1)
    )
    return begun.rowcount == 1
