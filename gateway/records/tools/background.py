"""Options of an agent record's tools that make calls of the gateway background jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool

MAX_TIMEOUT = 600
"""Seconds of a call that a turn waits for."""

MAX_JOB_TIMEOUT = 86_400
"""Seconds of a call that is, or may become, a background job."""

IN_SANDBOX = (
    "the command runs in the sandbox of the turn, and would end with it: leave {} out, or write a "
    "script of the workspace that makes the call, with async: true (tools.scripts)"
)

IsAsync = Annotated[StrictBool, Field(alias="async")]
"""The mark `async`: each call is a background job."""

BackgroundAfter = Annotated[float, Field(gt=0, le=MAX_TIMEOUT, strict=True)]
"""Seconds after which a call becomes a background job."""

CallTimeout = Annotated[int, Field(ge=1, le=MAX_JOB_TIMEOUT, strict=True)]


def check_timeout(timeout: int, *, may_be_job: bool, options: str) -> None:
    """Raise ValueError for a time-out that is too long for calls that a turn waits for."""
    if timeout > MAX_TIMEOUT and not may_be_job:
        raise ValueError(
            f"timeout: a turn waits for at most {MAX_TIMEOUT} seconds: set {options} for longer calls"
        )
