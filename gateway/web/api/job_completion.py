"""Where a sandbox tells of a job's end: with the job's own token, over HTTP or the callback socket."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool

from gateway.web.http.auth import JobTokenAccess
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel
from sandbox.model import OUTPUT_CAP


class JobCompletion(RequestModel):
    """How the job ended: its exit code, the last of its output, and whether there was more."""

    exit_code: Annotated[int, Field(ge=-256, le=512)]
    output: Annotated[str, Field(max_length=OUTPUT_CAP)] = ""
    truncated: StrictBool = False


class JobCompleted(ResponseModel):
    """The job is settled; a repetition says the same."""

    ok: bool = True


async def complete(call: ApiCall[JobCompletion, NoContent]) -> JobCompleted:
    """Settle the job; an unknown id and a wrong token are the same 401."""
    taken = await call.services.job_settlement.complete(
        call.path["id"],
        call.token,
        exit_code=call.body.exit_code,
        output=call.body.output.encode("utf-8", "surrogatepass"),
        truncated=call.body.truncated,
    )
    if not taken:
        raise call.failed_authentication()
    return JobCompleted()


ROUTES = (
    ApiRoute(
        method="POST",
        path="/sandbox-jobs/{id}/complete",
        access=JobTokenAccess(),
        handler=complete,
        summary="tell of a background job's end (sandboxes only)",
        request_model=JobCompletion,
        response_model=JobCompleted,
        lenient=True,
        tag="jobs",
    ),
)
"""All that the callback socket serves."""
