"""Errands: what a chat command asks of sandboxes, done after the transaction that heard it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from delivery.database.engine import Unavailable
from delivery.deliveries.rendering import fenced
from delivery.deliveries.transactions import Ledger
from gateway.conversations.notices import give_notice
from gateway.jobs.jobs import Jobs
from gateway.store.turns import jobs
from gateway.store.turns.jobs import Job
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

LAST_LETTERS = 3000
"""Characters of a job's output shown in a chat."""


class Errands:
    """Runs errands one after the other. What is lost with the process is asked for again by a person."""

    def __init__(self, ledger: Ledger, background_jobs: Jobs) -> None:
        self._ledger = ledger
        self._jobs = background_jobs
        self._asked: asyncio.Queue[tuple[Callable[[Job], Awaitable[None]], str]] = asyncio.Queue()

    def stop(self, job: str) -> None:
        """Stop a job soon."""
        self._asked.put_nowait((self._jobs.stop, job))

    def look(self, job: str) -> None:
        """Say soon in a job's conversation what it has written so far."""
        self._asked.put_nowait((self._look, job))

    async def run(self, stop: asyncio.Event) -> None:
        """Do what was asked for, until stopped."""
        ending = asyncio.create_task(stop.wait())
        while not stop.is_set():
            asking = asyncio.create_task(self._asked.get())
            await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                await self._run_one(*asking.result())
            asking.cancel()
        ending.cancel()

    async def _run_one(self, errand: Callable[[Job], Awaitable[None]], job_id: str) -> None:
        try:
            async with self._ledger.database.read() as connection:
                job = await jobs.by_id(connection, job_id)
            if job is not None:
                await errand(job)
        except (SandboxError, Unavailable) as error:
            log.warning("errand.failed", job=job_id, error=str(error))
        except Exception:  # the outermost loop of errands: the next one must be done all the same
            log.exception("errand.failed", job=job_id)

    async def _look(self, job: Job) -> None:
        try:
            now, output, _cut = await self._jobs.look(job)
            text = tell_job(now, output.decode("utf-8", "replace"))
        except SandboxError as error:
            text = f"Job {job.id} is {job.state}; its sandbox cannot be asked now: {error}"
        async with self._ledger.entry("errand") as entry:
            await give_notice(entry, job.conversation, text)


def tell_job(job: Job, output: str) -> str:
    """Return what a chat is told of a job: how it stands, and the end of what it has written."""
    shown = output[-LAST_LETTERS:].strip("\n")
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    return f"Job {job.id} is {job.state}{code}.\n\n" + (
        fenced(shown) if shown else "It has written nothing yet."
    )
