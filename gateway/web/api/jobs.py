"""Background jobs over HTTP: list, show, read the output and stop."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from delivery.database.engine import Database
from gateway.store.job_state import JobReason, JobState
from gateway.store.turns import jobs as store
from gateway.store.turns.jobs import Job
from gateway.web.api.conversations import filter_by
from gateway.web.api.files.file_shapes import StoredFileShape
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import HttpProblem, not_found
from gateway.web.http.route import ApiCall, NoContent, ResponseModel
from sandbox.errors import SandboxError


class JobResponse(ResponseModel):
    """A job without its output."""

    id: str
    resultId: str
    state: JobState
    command: str
    conversation: str
    turn: str
    exit_code: int | None
    reason: JobReason | None
    truncated: bool
    stopping: bool
    created_at: datetime
    finished_at: datetime | None


class JobDetail(JobResponse):
    """A job with its output and files, once it has ended."""

    output: str
    files: list[StoredFileShape]


class JobLog(ResponseModel):
    """The last bytes of a job's output so far, as text."""

    resultId: str
    state: JobState
    output: str
    truncated: bool


class JobQuery(PageQuery):
    """Which jobs."""

    state: JobState | None = None
    conversation: Annotated[str, Field(max_length=300)] | None = None


def to_response(job: Job) -> JobResponse:
    """Return a job as a list item."""
    return JobResponse(
        id=job.id,
        resultId=job.id,
        state=job.state,
        command=job.command,
        conversation=job.conversation,
        turn=job.turn,
        exit_code=job.exit_code,
        reason=JobReason.parse(job.reason),
        truncated=job.truncated,
        stopping=job.state is JobState.RUNNING and job.stop_requested_at is not None,
        created_at=job.created_at,
        finished_at=job.finished_at,
    )


def to_detail(job: Job, files: list[dict[str, Any]]) -> JobDetail:
    """Return a job with its output and its files."""
    return JobDetail(**to_response(job).model_dump(), output=job.output, files=files)


async def require_job(database: Database, account: str, job_id: str) -> Job:
    """Return an account's job; 404 when it has none of this id."""
    async with database.read() as connection:
        job = await store.get(connection, account, job_id)
    if job is None:
        raise not_found("there is no such job in this account")
    return job


async def list_jobs(call: ApiCall[NoContent, JobQuery]) -> ListPage[JobResponse]:
    """List the account's jobs, newest first."""
    query = call.query
    async with call.context.database.read() as connection:
        some = await store.list_for_account(
            connection,
            call.account,
            after=query.cursor,
            limit=query.limit + 1,
            conversation=await filter_by(connection, call.account, query.conversation),
            state=str(query.state) if query.state else None,
        )
    page, following = paginate(some, query.limit)
    return ListPage[JobResponse](items=[to_response(job) for job in page], next=following)


async def get_job(call: ApiCall[NoContent, NoContent]) -> JobDetail:
    """Return one job."""
    job = await require_job(call.context.database, call.account, call.path["id"])
    async with call.context.database.read() as connection:
        return to_detail(job, await call.services.file_services.collector.list_for_job(connection, job))


async def get_log(call: ApiCall[NoContent, NoContent]) -> JobLog:
    """Return a job's output; also while it runs."""
    job = await require_job(call.context.database, call.account, call.path["id"])
    try:
        now, output, truncated = await call.services.jobs.refresh(job)
    except SandboxError as error:
        raise HttpProblem(
            503, "the sandbox does not answer; try again", headers={"Retry-After": "5"}
        ) from error
    text = output.decode("utf-8", "replace")
    return JobLog(resultId=now.id, state=now.state, output=text, truncated=truncated)


async def stop_job(call: ApiCall[NoContent, NoContent]) -> JobDetail:
    """Stop a job with its processes; does nothing to an ended job."""
    job = await require_job(call.context.database, call.account, call.path["id"])
    with suppress(SandboxError):  # the stop is recorded; the reconciler performs it
        await call.services.jobs.stop(job)
    return await get_job(call)
