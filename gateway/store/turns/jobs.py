"""SQL of background jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from gateway.store.job_state import JobEnd, JobState
from gateway.store.tables import jobs

CALLS = "gateway"
"""The provider of jobs that are tool calls: no sandbox runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A background command or tool call that outlives its turn."""

    id: str
    account: str
    conversation: str
    turn: str
    agent: str
    asker: str
    command: str
    provider: str
    sandbox: str
    sandbox_record: str | None
    workspace: str | None
    replica: str | None = None
    """The replica on whose machine it runs; None if every replica can reach it."""
    state: JobState = JobState.RUNNING
    reason: str | None = None
    token_digest: bytes
    token_sealed: bytes
    spawned_at: datetime | None = None
    stop_requested_at: datetime | None = None
    exit_code: int | None = None
    output: str = ""
    truncated: bool = False
    unreachable_since: datetime | None = None
    created_at: datetime
    finished_at: datetime | None = None

    @property
    def is_call(self) -> bool:
        """Whether it is a tool call that the gateway makes, and no command in a sandbox."""
        return self.provider == CALLS


_COLUMNS = [jobs.c[name] for name in Job.__dataclass_fields__]


def _job(row: Mapping[Any, Any]) -> Job:
    return Job(**{**row, "state": JobState(row["state"])})


async def _all(connection: Connection, query: Any) -> list[Job]:
    return [_job(row) for row in (await connection.execute(query)).mappings()]


async def insert_job(connection: Connection, job: Job) -> None:
    """Record a job before it is started."""
    values = {name: getattr(job, name) for name in Job.__dataclass_fields__}
    await connection.execute(insert(jobs).values(**values | {"state": str(job.state)}))


async def get_by_id(connection: Connection, job: str) -> Job | None:
    """Return a job whosever it is; for the gateway's own workers and the completion route."""
    found = await _all(connection, select(*_COLUMNS).where(jobs.c.id == job))
    return found[0] if found else None


async def get(
    connection: Connection, account: str, job: str, *, conversation: str | None = None
) -> Job | None:
    """Return an account's job; with `conversation`, only if it belongs to that conversation."""
    query = select(*_COLUMNS).where(jobs.c.id == job, jobs.c.account == account)
    if conversation is not None:
        query = query.where(jobs.c.conversation == conversation)
    found = await _all(connection, query)
    return found[0] if found else None


async def list_for_account(
    connection: Connection,
    account: str,
    *,
    after: str | None = None,
    limit: int = 50,
    conversation: str | None = None,
    state: str | None = None,
) -> list[Job]:
    """Return an account's jobs, newest first, older than the id `after`."""
    query = select(*_COLUMNS).where(jobs.c.account == account)
    if after:
        query = query.where(_older(after))
    if conversation:
        query = query.where(jobs.c.conversation == conversation)
    if state:
        query = query.where(jobs.c.state == state)
    return await _all(connection, query.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit))


def _older(job: str) -> ColumnElement[bool]:
    """Order by time first: a job's id is derived from its turn's id and has no time in it."""
    then = select(jobs.c.created_at).where(jobs.c.id == job).scalar_subquery()
    return (jobs.c.created_at < then) | ((jobs.c.created_at == then) & (jobs.c.id < job))


async def list_running(connection: Connection) -> list[Job]:
    """Return every running command; the tool calls are left out."""
    running = (jobs.c.state == str(JobState.RUNNING)) & (jobs.c.provider != CALLS)
    return await _all(connection, select(*_COLUMNS).where(running).order_by(jobs.c.id))


async def list_running_of(connection: Connection, conversation: str, turn: str) -> list[Job]:
    """Return the running jobs and calls that a turn of this conversation started, oldest first."""
    started = (jobs.c.conversation == conversation) & (jobs.c.turn == turn)
    running = started & (jobs.c.state == str(JobState.RUNNING))
    return await _all(connection, select(*_COLUMNS).where(running).order_by(jobs.c.created_at, jobs.c.id))


async def count_running_in(connection: Connection, sandbox: str) -> int:
    """Return how many jobs run in one sandbox."""
    counted = await connection.execute(
        select(func.count())
        .select_from(jobs)
        .where(jobs.c.sandbox == sandbox, jobs.c.state == str(JobState.RUNNING))
    )
    return int(counted.scalar_one())


async def has_running(
    connection: Connection, account: str, workspace: str, *, other_than: str | None = None
) -> bool:
    """Return whether a command runs as a job in a workspace of an account, beside the job `other_than`.

    Jobs that are calls of tools change no files.
    """
    in_it = (jobs.c.account == account) & (jobs.c.workspace == workspace) & (jobs.c.provider != CALLS)
    query = select(jobs.c.id).where(in_it, jobs.c.state == str(JobState.RUNNING))
    if other_than is not None:
        query = query.where(jobs.c.id != other_than)
    return (await connection.execute(query.limit(1))).first() is not None


async def count_running_of(connection: Connection, sandbox_record: str) -> int:
    """Return how many jobs run in the sandboxes of a sandbox record."""
    counted = await connection.execute(
        select(func.count())
        .select_from(jobs)
        .where(jobs.c.sandbox_record == sandbox_record, jobs.c.state == str(JobState.RUNNING))
    )
    return int(counted.scalar_one())


async def mark_spawned(connection: Connection, job: str, *, sandbox: str, replica: str | None = None) -> None:
    """Record that the sandbox accepted the job, with its final id and the replica that alone reaches it."""
    now = utc_now()
    await connection.execute(
        update(jobs).where(jobs.c.id == job).values(spawned_at=now, sandbox=sandbox, replica=replica)
    )


async def request_stop(connection: Connection, job: str) -> bool:
    """Record a request to stop the job; returns False when it has ended already."""
    changed = await connection.execute(
        update(jobs)
        .where(jobs.c.id == job, jobs.c.state == str(JobState.RUNNING))
        .values(stop_requested_at=func.coalesce(jobs.c.stop_requested_at, utc_now()))
    )
    return changed.rowcount == 1


async def mark_ending(connection: Connection, job: str, reason: str) -> bool:
    """Record why a running job is being ended, for the process that settles it; False when it has ended."""
    changed = await connection.execute(
        update(jobs)
        .where(jobs.c.id == job, jobs.c.state == str(JobState.RUNNING))
        .values(reason=func.coalesce(jobs.c.reason, reason))
    )
    return changed.rowcount == 1


async def set_unreachable_since(connection: Connection, job: str, *, since: datetime | None) -> None:
    """Remember since when the provider has not answered for this job (None: it answers)."""
    await connection.execute(update(jobs).where(jobs.c.id == job).values(unreachable_since=since))


async def settle(connection: Connection, job: str, end: JobEnd) -> bool:
    """Set a job's final state; returns False when it has one already."""
    settled = await connection.execute(
        update(jobs)
        .where(jobs.c.id == job, jobs.c.state == str(JobState.RUNNING))
        .values(
            state=str(end.state),
            exit_code=end.exit_code,
            output=end.output,
            truncated=end.truncated,
            reason=end.reason,
            finished_at=utc_now(),
        )
    )
    return settled.rowcount == 1
