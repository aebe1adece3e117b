"""Background jobs: start, look after, stop, and settle each exactly once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime

import structlog

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, DatabaseUnavailable
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.route import RouteKind
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType, new_id
from gateway.accounts.vault import Vault, associated_data
from gateway.environments.resolver import Environment, EnvironmentResolver
from gateway.files.collection import FileCollector
from gateway.store.job_state import (
    EVENT_KINDS,
    LOST_AFTER,
    MAX_RUNNING,
    WORKSPACE_FULL,
    JobEnd,
    JobState,
    job_end,
    render_result,
)
from gateway.store.turns import jobs as store
from gateway.store.turns import turns
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn
from sandbox import model as sandbox_model
from sandbox.errors import SandboxError, SandboxGone
from sandbox.port import Sandbox

log = structlog.get_logger(__name__)

MAX_EVENT_OUTPUT = 32 * 1024
"""Characters of output an event carries; the whole stands in the job's logs."""

START_TIMEOUT = 30.0
"""Seconds after which a recorded job that its sandbox has never heard of is given up."""


class TooManyJobs(Exception):
    """The sandbox runs as many jobs as it may."""


class Jobs:
    """The one place where jobs begin and end."""

    def __init__(
        self,
        transactions: Transactions,
        environment_resolver: EnvironmentResolver,
        vault: Vault,
        checkpoint: Callable[[str], None],
        *,
        file_collector: FileCollector,
        max_running: int = MAX_RUNNING,
    ) -> None:
        self._file_collector = file_collector
        self._transactions = transactions
        self._environment_resolver = environment_resolver
        self._vault = vault
        self._checkpoint = checkpoint
        self._max_running = max_running

    async def start(
        self, turn: Turn, environment: Environment, command: str, *, job_id: str | None = None
    ) -> Job:
        """Record a job and start it in the sandbox; raises TooManyJobs, SandboxError.

        `job_id` makes a repetition (after a crash in between) the same job.
        """
        sandbox = await self._environment_resolver.wake(environment)
        async with self._transactions.begin("job.start") as entry:
            job = await store.get_by_id(entry.connection, job_id) if job_id else None
            if job is None:
                job = await self._create(
                    entry, turn, environment, sandbox=str(sandbox.id), command=command, job_id=job_id
                )
        if job.state is JobState.RUNNING and job.spawned_at is None:
            await self._spawn(job, sandbox)
        return job

    def read(self) -> AbstractAsyncContextManager[Connection]:
        """Open a connection for reading."""
        return self._transactions.database.read()

    async def get(self, turn: Turn, job_id: str) -> Job | None:
        """Return a job of the turn's own conversation."""
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
                f"{running} jobs are running in this sandbox, which is the most; stop one or wait for one"
            )
        token = secrets.token_urlsafe(32)
        new = job_id or new_id("job")
        job = Job(
            id=new,
            account=turn.account,
            conversation=turn.conversation,
            turn=turn.id,
            agent=turn.agent,
            asker=turn.asker,
            command=command,
            provider=environment.provider,
            sandbox=sandbox,
            sandbox_record=environment.sandbox_record,
            workspace=environment.workspace,
            token_digest=hashlib.sha256(token.encode()).digest(),
            token_sealed=self._vault.encrypt(associated_data("jobs", new, "token"), token).encode(),
            created_at=utc_now(),
        )
        await store.insert_job(tx.connection, job)
        tx.emit(
            Event.now(
                EventType.JOB_STARTED,
                turn.conversation,
                {
                    "resultId": job.id,
                    "command": command,
                    "exit_code": None,
                    "output": "",
                    "truncated": False,
                    "files": [],
                },
                turn=turn.id,
            )
        )
        return job

    async def _spawn(self, job: Job, sandbox: Sandbox) -> None:
        token = self._vault.decrypt(associated_data("jobs", job.id, "token"), job.token_sealed.decode())
        self._checkpoint("job.before_spawn")
        await sandbox.spawn(sandbox_model.BackgroundJob(id=job.id, script=job.command, token=token))
        self._checkpoint("job.after_spawn")
        async with self._transactions.database.begin() as connection:
            await store.mark_spawned(connection, job.id, sandbox=str(sandbox.id))

    async def complete(
        self, job_id: str, token: str, *, exit_code: int, output: bytes, truncated: bool = False
    ) -> bool:
        """Take a sandbox's word for a job's end; False for an unknown id or a wrong token alike.

        The same valid token again is True and changes nothing.
        """
        async with self._transactions.database.read() as connection:
            job = await store.get_by_id(connection, job_id)
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = job.token_digest if job else b"\0" * 32
        if not hmac.compare_digest(digest, known) or job is None:
            return False
        stopping = job.stop_requested_at is not None
        end = job_end(exit_code, output, truncated=truncated, stopping=stopping, reason=job.reason)
        await self.settle(job, end)
        return True

    async def settle(self, job: Job, end: JobEnd) -> bool:
        """End a job, queue its follow-up turn and tell everybody, once; False when it had ended already."""
        if end.state is not JobState.LOST:  # nobody answers for its sandbox
            await self._file_collector.collect_job(job)
            await self._environment_resolver.sync_job_files(job)
        async with self._transactions.begin("job.settle") as entry:
            if not await store.settle(entry.connection, job.id, end):
                return False
            await self._queue_follow_up(entry, job, end)
        return True

    async def _queue_follow_up(self, tx: Transaction, job: Job, end: JobEnd) -> None:
        turn = Turn(
            id=new_id("trn"),
            account=job.account,
            conversation=job.conversation,
            agent=job.agent,
            trigger="job",
            job=job.id,
            asker=job.asker,
            input=render_result(end, job.command, job.id),
            notify=True,
            created_at=utc_now(),
        )
        await turns.insert_turn(tx.connection, turn)
        routes = await delivery_store.list_routes(tx.connection, job.conversation, job.turn)
        for route in routes:
            if route.kind is RouteKind.WEBHOOK and route.turn == job.turn:
                await delivery_store.add_route(tx.connection, route.for_turn(turn.id))
        taken = await self._file_collector.attach(tx, job.conversation, job=job.id)
        result: dict[str, object] = {
            "resultId": job.id,
            "command": job.command,
            "exit_code": end.exit_code,
            "output": end.output[-MAX_EVENT_OUTPUT:],
            "truncated": end.truncated or len(end.output) > MAX_EVENT_OUTPUT,
            "files": list(taken.files),
        }
        if result["truncated"]:
            result["url"] = f"/jobs/{job.id}/logs"
        if end.reason:
            result["reason"] = end.reason
        tx.emit(
            Event.now(EVENT_KINDS[end.state], job.conversation, result, turn=job.turn),
            Event.now(
                EventType.TURN_QUEUED,
                job.conversation,
                {"trigger": "job", "attempt": 0, "resultId": job.id},
                turn=turn.id,
            ),
        )
        await taken.emit_notice(tx, job.conversation)
        tx.wake(WorkQueue.TURN, job.conversation)

    async def refresh(self, job: Job) -> tuple[Job, bytes, bool]:
        """Return the job as it is now, its output so far, and whether that is cut; settles an ended job."""
        if job.state is not JobState.RUNNING:
            return job, job.output.encode(), job.truncated
        report = await (await self._environment_resolver.sandbox_of_job(job)).report(job.id)
        await self._apply_report(job, report)
        async with self._transactions.database.read() as connection:
            now = await store.get_by_id(connection, job.id)
        return now or job, report.output, report.truncated

    async def stop(self, job: Job) -> None:
        """End a job: TERM, then KILL; it is settled as stopped."""
        async with self._transactions.database.begin() as connection:
            if not await store.request_stop(connection, job.id):
                return
        sandbox = await self._environment_resolver.sandbox_of_job(job)
        await sandbox.stop(job.id)
        report = await sandbox.report(job.id)
        await self.settle(job, job_end(report.exit_code or 143, report.output, stopping=True))

    async def fail(self, job: Job, reason: str) -> None:
        """End a job that may not go on; it is settled as failed for that reason, whoever is first to say so.

        Where its sandbox cannot be asked it is settled all the same.
        """
        async with self._transactions.database.begin() as connection:
            if not await store.mark_ending(connection, job.id, reason):
                return
        try:
            sandbox = await self._environment_resolver.sandbox_of_job(job)
            await sandbox.stop(job.id)
            report = await sandbox.report(job.id)
        except SandboxError as error:
            log.warning("job.not_stopped", job=job.id, error=str(error))
            report = sandbox_model.JobReport(state=sandbox_model.BackgroundJobState.UNKNOWN)
        code, stopping = report.exit_code, job.stop_requested_at is not None
        if code is None:
            await self.settle(job, _failed_end(reason, report.output))
        else:
            end = job_end(code, report.output, truncated=report.truncated, stopping=stopping, reason=reason)
            await self.settle(job, end)

    async def reconcile(self, stop: asyncio.Event, *, interval: float) -> None:
        """Ask after running jobs whose callback may never come, until stopped."""
        while not stop.is_set():
            try:
                await self._reconcile_all()
            except DatabaseUnavailable as error:
                log.warning("jobs.database_unavailable", error=str(error))
            except Exception:  # the outermost loop of the reconciler: it must look again
                log.exception("jobs.reconcile_failed")
            try:
                async with asyncio.timeout(interval):
                    await stop.wait()
            except TimeoutError:
                continue

    async def _reconcile_all(self) -> None:
        async with self._transactions.database.read() as connection:
            running = await store.list_running(connection)
        for job in running:
            try:
                await self._reconcile_one(job)
            except SandboxGone as error:
                await self._sandbox_gone(job, error)
            except SandboxError as error:
                await self._mark_unreachable(job, error)

    async def _reconcile_one(self, job: Job) -> None:
        sandbox = await self._environment_resolver.sandbox_of_job(job)
        if job.stop_requested_at is not None or job.reason is not None:
            await sandbox.stop(job.id)
        report = await sandbox.report(job.id)
        if job.unreachable_since is not None:
            async with self._transactions.database.begin() as connection:
                await store.set_unreachable_since(connection, job.id, since=None)
        await self._apply_report(job, report)

    async def _apply_report(self, job: Job, report: sandbox_model.JobReport) -> None:
        match report.state:
            case sandbox_model.BackgroundJobState.EXITED:
                stopping = job.stop_requested_at is not None
                code = 137 if report.exit_code is None else report.exit_code
                end = job_end(
                    code, report.output, truncated=report.truncated, stopping=stopping, reason=job.reason
                )
                await self.settle(job, end)
            case sandbox_model.BackgroundJobState.RECREATED:
                await self.settle(job, _failed_end("sandbox_recreated", report.output))
            case sandbox_model.BackgroundJobState.UNKNOWN if _age_seconds(job.created_at) > START_TIMEOUT:
                await self.settle(job, _failed_end("never_started", b""))
            case sandbox_model.BackgroundJobState.RUNNING if report.over_quota:
                await self.fail(job, WORKSPACE_FULL)
            case _:
                return

    async def _sandbox_gone(self, job: Job, error: SandboxGone) -> None:
        """End a job whose machine is gone; one that is only being started gets another machine."""
        if job.spawned_at is not None or _age_seconds(job.created_at) > START_TIMEOUT:
            log.warning("job.sandbox_gone", job=job.id, error=str(error))
            await self.settle(job, _failed_end("sandbox_recreated", b""))

    async def _mark_unreachable(self, job: Job, error: SandboxError) -> None:
        since = job.unreachable_since or utc_now()
        log.warning("job.provider_unreachable", job=job.id, since=since.isoformat(), error=str(error))
        if _age_seconds(since) > LOST_AFTER:
            await self.settle(job, JobEnd(state=JobState.LOST, reason="provider_unreachable"))
        elif job.unreachable_since is None:
            async with self._transactions.database.begin() as connection:
                await store.set_unreachable_since(connection, job.id, since=since)


def _failed_end(reason: str, output: bytes) -> JobEnd:
    return JobEnd(state=JobState.FAILED, output=output.decode("utf-8", "replace"), reason=reason)


def _age_seconds(since: datetime) -> float:
    return (utc_now() - since).total_seconds()
