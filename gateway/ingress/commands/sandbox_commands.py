"""Sandbox commands: the part of a chat command that needs a sandbox, run after its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.rendering import code_block
from delivery.deliveries.transactions import Transactions
from delivery.fair_gate import FairGate, working_for
from delivery.fair_scheduler import PoolSize
from gateway.conversations.notices import post_notice
from gateway.jobs.jobs import Jobs
from gateway.store.turns import jobs
from gateway.store.turns.jobs import Job
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

MAX_OUTPUT = 3000
"""Characters of a job's output shown in a chat."""


ACCOUNTS_AT_ONCE = 8


class SandboxCommands:
    """Runs each account's commands one after the other, and those of several accounts at once.

    Commands are not stored; a person repeats one that a crash lost.
    """

    def __init__(self, transactions: Transactions, background_jobs: Jobs) -> None:
        self._transactions = transactions
        self._jobs = background_jobs
        self._queue: asyncio.Queue[tuple[Callable[[Job], Awaitable[None]], str]] = asyncio.Queue()
        self._gate = FairGate(PoolSize(places=ACCOUNTS_AT_ONCE, share=1 / ACCOUNTS_AT_ONCE))

    def stop_job(self, job: str) -> None:
        """Queue the stop of a job."""
        self._queue.put_nowait((self._jobs.stop, job))

    def show_output(self, job: str) -> None:
        """Queue a notice with a job's output so far in its conversation."""
        self._queue.put_nowait((self._post_output, job))

    async def run(self, stop: asyncio.Event) -> None:
        """Run queued commands until stopped."""
        ending = asyncio.create_task(stop.wait())
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                asking = asyncio.create_task(self._queue.get())
                await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    group.create_task(self._run_one(*asking.result(), stop))
                asking.cancel()
        ending.cancel()

    async def _run_one(
        self, command: Callable[[Job], Awaitable[None]], job_id: str, stop: asyncio.Event
    ) -> None:
        try:
            async with self._transactions.database.read() as connection:
                job = await jobs.get_by_id(connection, job_id)
            if job is not None:
                with working_for(job.account):
                    async with self._gate.hold(job.account):
                        if not stop.is_set():
                            await command(job)
        except (SandboxError, DatabaseUnavailable) as error:
            log.warning("command.failed", job=job_id, error=str(error))
        except Exception:  # the outermost loop of the queue: the next command must run
            log.exception("command.failed", job=job_id)

    async def _post_output(self, job: Job) -> None:
        try:
            current, output, _truncated = await self._jobs.refresh(job)
            text = render_job(current, output.decode("utf-8", "replace"))
        except SandboxError as error:
            text = f"Job {job.id} is {job.state}; its sandbox cannot be reached: {error}"
        async with self._transactions.begin("errand") as tx:
            await post_notice(tx, job.conversation, text, urgent=True)


def render_job(job: Job, output: str) -> str:
    """Return a job's state, exit code and the end of its output as a chat message."""
    shown = output[-MAX_OUTPUT:].strip("\n")
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    return f"Job {job.id} is {job.state}{code}.\n\n" + (
        code_block(shown) if shown else "There is no output yet."
    )
