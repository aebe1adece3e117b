"""Waiting for conditions inside sandboxes; each wait ends after TIMEOUT_SECONDS."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sandbox.model import BackgroundJobState, JobReport
from sandbox.port import Sandbox

TIMEOUT_SECONDS = 20.0
"""Less than the commands of tests sleep: what should have been ended must not have ended by itself."""

POLL_SECONDS = 0.1
"""Seconds between two checks, each of which may run a command in the sandbox.

An ended command counts against the sandbox's `pids` until process 1 of the machine reaps it, which takes two
seconds on some machines.
"""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `condition` holds; raises TimeoutError."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await condition():  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(POLL_SECONDS)


async def wait_for_job(sandbox: Sandbox, job_id: str) -> JobReport:
    """Return the report of a job once it no longer runs."""
    report = await sandbox.report(job_id)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while report.state is BackgroundJobState.RUNNING:
            await asyncio.sleep(POLL_SECONDS)
            report = await sandbox.report(job_id)
    return report


async def wait_for_output(sandbox: Sandbox, job_id: str, text: bytes) -> None:
    """Wait until a job's output contains `text`; raises AssertionError if the job ended without it."""

    async def holds() -> bool:
        report = await sandbox.report(job_id)
        assert text in report.output or report.state is BackgroundJobState.RUNNING, report.output
        return text in report.output

    await until(holds)
