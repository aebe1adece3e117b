"""Background jobs: start a command, record a tool call, read the present state, stop one."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType, new_id
from gateway.accounts.vault import Vault, associated_data
from gateway.environments.environment import Environment
from gateway.environments.job_replicas import RunsElsewhere
from gateway.environments.resolver import EnvironmentResolver
from gateway.jobs.settlement import JobSettlement
from gateway.store.job_state import MAX_RUNNING, JobEnd, JobReason, JobState, job_end
from gateway.store.turns import job_calls
from gateway.store.turns import jobs as store
from gateway.store.turns.job_calls import JobCall
from gateway.store.turns.jobs import CALLS, Job
from gateway.store.turns.turns import Turn
from sandbox import model as sandbox_model
from sandbox.port import Sandbox


class TooManyJobs(Exception):
    """The sandbox, or the account with its calls, runs as many jobs as it is allowed to."""


def _ignore_stop(_job: str) -> None:
    """Do nothing: this process makes no calls."""


class Jobs:
    """Starts, reads and stops background jobs."""

    def __init__(
        self,
        transactions: Transactions,
        environment_resolver: EnvironmentResolver,
        vault: Vault,
        checkpoint: Callable[[str], None],
        *,
        settlement: JobSettlement,
        max_running: int = MAX_RUNNING,
    ) -> None:
        self._transactions = transactions
        self._environment_resolver = environment_resolver
        self._vault = vault
        self._checkpoint = checkpoint
        self._settlement = settlement
        self._max_running = max_running
        self.on_call_stopped: Callable[[str], None] = _ignore_stop
        """Ends a call that this process makes."""

    async def start(
        self, turn: Turn, environment: Environment, command: str, *, job_id: str | None = None
    ) -> Job:
        """Record a job and start it in the sandbox; raises TooManyJobs, SandboxError.

        With the same `job_id` a repetition, for instance after a crash, returns the same job.
        """
        sandbox = await self._environment_resolver.wake(environment)
        async with self._transactions.begin("job.start") as tx:
            job = await store.get_by_id(tx.connection, job_id) if job_id else None
            if job is None:
                job = await self._create(
                    tx, turn, environment, sandbox=str(sandbox.id), command=command, job_id=job_id
                )
        if job.state is JobState.RUNNING and job.spawned_at is None:
            await self._spawn(job, sandbox)
        return job

    async def record_call(self, turn: Turn, call: JobCall, command: str) -> Job:
        """Record a tool call as a job; raises TooManyJobs. With the same id it returns the same job.

        `call.attempt` is 1 for a call that has begun. `command` shows the call to people.
        """
        async with self._transactions.begin("job.record_call") as tx:
            job = await store.get_by_id(tx.connection, call.job)
            if job is not None:
                return job
            sandbox = f"{CALLS}:{turn.account}"
            running = await store.count_running_in(tx.connection, sandbox)
            if running >= self._max_running:
                raise TooManyJobs(
                    f"{running} calls run as background jobs of this account, which is its limit; "
                    "stop one or wait"
                )
            job = self._new_job(turn, call.job, provider=CALLS, sandbox=sandbox, command=command)
            await store.insert_job(tx.connection, job)
            await job_calls.insert_call(tx.connection, call)
            tx.emit(_started_event(job))
        return job

    def read(self) -> AbstractAsyncContextManager[Connection]:
        """Open a connection for reading."""
        return self._transactions.database.read()

    async def get(self, turn: Turn, job_id: str) -> Job | None:
        """Return a job of the turn's conversation, or None."""
        async with self.read() as connection:
            return await store.get(connection, turn.account, job_id, conversation=turn.conversation)

    async def _create(
        self,
        tx: Transaction,
        turn: Turn,
        environment: Environment,
        *,
        sandbox: str,
        command: str,
        job_id: str | None,
    ) -> Job:
        running = await store.count_running_in(tx.connection, sandbox)
        if running >= self._max_running:
            raise TooManyJobs(
                f"{running} jobs are running in this sandbox, which is its limit; stop one or wait"
            )
        job = self._new_job(
            turn, job_id or new_id("job"), provider=environment.provider, sandbox=sandbox, command=command
        )
        job = replace(job, sandbox_record=environment.sandbox_record, workspace=environment.workspace)
        await store.insert_job(tx.connection, job)
        tx.emit(_started_event(job))
        return job

    def _new_job(self, turn: Turn, job_id: str, *, provider: str, sandbox: str, command: str) -> Job:
        token = secrets.token_urlsafe(32)
        return Job(
            id=job_id,
            account=turn.account,
            conversation=turn.conversation,
            turn=turn.id,
            agent=turn.agent,
            asker=turn.asker,
            command=command,
            provider=provider,
            sandbox=sandbox,
            sandbox_record=None,
            workspace=None,
            token_digest=hashlib.sha256(token.encode()).digest(),
            token_sealed=self._vault.encrypt(associated_data("jobs", job_id, "token"), token).encode(),
            created_at=utc_now(),
        )

    async def _spawn(self, job: Job, sandbox: Sandbox) -> None:
        token = self._vault.decrypt(associated_data("jobs", job.id, "token"), job.token_sealed.decode())
        self._checkpoint("job.before_spawn")
        await sandbox.spawn(sandbox_model.BackgroundJob(id=job.id, script=job.command, token=token))
        self._checkpoint("job.after_spawn")
        async with self._transactions.database.begin() as connection:
            owner = self._environment_resolver.job_replicas.owner(job.provider)
            await store.mark_spawned(connection, job.id, sandbox=str(sandbox.id), replica=owner)

    async def refresh(self, job: Job) -> tuple[Job, bytes, bool]:
        """Return the job, its output so far and whether that is truncated; settles a job that has ended."""
        if job.state is not JobState.RUNNING or job.is_call:
            return await self._present(job)
        report = await (await self._environment_resolver.sandbox_of_job(job)).report(job.id)
        await self._settlement.apply_report(job, report)
        return (await self._present(job))[0], report.output, report.truncated

    async def _present(self, job: Job) -> tuple[Job, bytes, bool]:
        async with self.read() as connection:
            current = await store.get_by_id(connection, job.id) or job
        return current, current.output.encode(), current.truncated

    async def stop(self, job: Job) -> None:
        """Stop a command with TERM, then KILL, or cancel a call, and settle the job as stopped.

        A job of another replica is stopped by that replica, which reads the request within seconds.
        """
        async with self._transactions.database.begin() as connection:
            if not await store.request_stop(connection, job.id):
                return
        if job.is_call:
            await self._settlement.settle(job, JobEnd(state=JobState.STOPPED, reason=JobReason.CALL_STOPPED))
            self.on_call_stopped(job.id)
            return
        try:
            sandbox = await self._environment_resolver.sandbox_of_job(job)
        except RunsElsewhere:
            return
        await sandbox.stop(job.id)
        report = await sandbox.report(job.id)
        await self._settlement.settle(job, job_end(report.exit_code or 143, report.output, stopping=True))


def _started_event(job: Job) -> Event:
    started: dict[str, object] = {
        "resultId": job.id,
        "command": job.command,
        "exit_code": None,
        "output": "",
        "truncated": False,
        "files": [],
    }
    return Event.now(EventType.JOB_STARTED, job.conversation, started, turn=job.turn)
