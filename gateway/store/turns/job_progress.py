"""SQL of the progress of running jobs."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update

from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.job_state import JobState
from gateway.store.sandbox_tables import job_progress
from gateway.store.tables import jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedProgress:
    """How often the progress of a job was reported, and the first event that did."""

    reports: int
    event: str


async def get(connection: Connection, job: str) -> ReportedProgress | None:
    """Return how a job was reported, or None."""
    query = select(job_progress.c.reports, job_progress.c.event).where(job_progress.c.job == job)
    row = (await connection.execute(query)).first()
    return None if row is None else ReportedProgress(reports=row.reports, event=row.event)


async def lock_running(connection: Connection, job: str) -> bool:
    """Keep a running job from being settled until the transaction ends; False if it has ended."""
    changed = await connection.execute(
        update(jobs)
        .where(jobs.c.id == job, jobs.c.state == str(JobState.RUNNING))
        .values(reason=jobs.c.reason)
    )
    return changed.rowcount == 1


async def count(connection: Connection, job: str, *, event: str) -> None:
    """Count a report of a locked job; `event` is kept if it is the first."""
    statement = insert_on_conflict(job_progress, connection.dialect.name)
    account = select(jobs.c.account).where(jobs.c.id == job).scalar_subquery()
    values = {"job": job, "event": event, "reports": 1}
    await connection.execute(
        statement.values(account=account, **values).on_conflict_do_update(
            index_elements=["job"], set_={"reports": job_progress.c.reports + 1}
        )
    )
