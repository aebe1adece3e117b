"""Completion of background jobs by their sandboxes, with the job's token."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool

from gateway.web.http.auth import JobTokenAccess
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel
from sandbox.model import OUTPUT_CAP


class JobCompletion(RequestModel):
    """How a job ended: exit code, last output, and whether the output was truncated."""

    exit_code: Annotated[int, Field(ge=-256, le=512)]
    output: Annotated[str, Field(max_length=OUTPUT_CAP)] = ""
    truncated: StrictBool = False


class JobCompleted(ResponseModel):
    """The job is settled; a repeat gets the same response."""

    ok: bool = True


async def complete(call: ApiCall[JobCompletion, NoContent]) -> JobCompleted:
    """Settle the job."""
    await call.services.job_settlement.complete(
        call.job,
        exit_code=call.body.exit_code,
        output=call.body.output.encode("utf-8", "surrogatepass"),
        truncated=call.body.truncated,
    )
    return JobCompleted()


ROUTES = (
    ApiRoute(
        method="POST",
        path="/sandbox-jobs/{id}/complete",
        access=JobTokenAccess(),
        handler=complete,
        summary="report the end of a background job (sandboxes only)",
        request_model=JobCompletion,
        response_model=JobCompleted,
        lenient=True,
        tag="jobs",
    ),
)
"""The route of the callback sockets."""
