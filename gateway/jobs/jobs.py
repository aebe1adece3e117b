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

from delivery.broker.port import Queue
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, Unavailable
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.route import RouteKind
from delivery.deliveries.transactions import Entry, Ledger
from delivery.events.event import Event, Kind, new_id
from gateway.accounts.vault import Vault, context
from gateway.environments.resolver import Bench, Workbench
from gateway.files.collection import Outgoing
from gateway.store.job_state import (
    ANNOUNCED,
    LOST_AFTER,
    MOST_RUNNING,
    WORKSPACE_FULL,
    JobEnd,
    JobState,
    ended,
    told,
)
from gateway.store.turns import jobs as store
from gateway.store.turns import turns
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn
from sandbox import model as sandbox_model
from sandbox.errors import Gone, SandboxError
from sandbox.port import Sandbox

log = structlog.get_logger(__name__)

TOLD_LIMIT = 32 * 1024
"""Characters of output an event carries; the whole stands in the job's logs."""

NEVER_STARTED_AFTER = 30.0
"""Seconds after which a recorded job that its sandbox has never heard of is given up."""


class TooManyJobs(Exception):
    """The sandbox runs as many jobs as it may."""


class Jobs:
    """The one place where jobs begin and end."""

    def __init__(
        self,
        ledger: Ledger,
        workbench: Workbench,
        vault: Vault,
        checkpoint: Callable[[str], None],
        *,
        files: Outgoing,
        most_running: int = MOST_RUNNING,
    ) -> None:
        self._files = files
        self._ledger = ledger
        self._workbench = workbench
        self._vault = vault
        self._checkpoint = checkpoint
        self._most_running = most_running

    async def start(self, turn: Turn, bench: Bench, command: str, *, job_id: str | None = None) -> Job:
        """Record a job and start it in the sandbox; raises TooManyJobs, SandboxError.

        `job_id` makes a repetition (after a crash in between) the same job.
        """
        sandbox = await self._workbench.awake(bench)
        async with self._ledger.entry("job.start") as entry:
            job = await store.by_id(entry.connection, job_id) if job_id else None
            if job is None:
                job = await self._record(
                    entry, turn, bench, sandbox=str(sandbox.id), command=command, job_id=job_id
                )
        if job.state is JobState.RUNNING and job.spawned_at is None:
            await self._spawn(job, sandbox)
        return job

    def reading(self) -> AbstractAsyncContextManager[Connection]:
        """Open a connection for reading."""
        return self._ledger.database.read()

    async def find(self, turn: Turn, job_id: str) -> Job | None:
        """Return a job of the turn's own conversation."""
        async with self.reading() as connection:
            return await store.find(connection, turn.account, job_id, conversation=turn.conversation)

    async def _record(
        self, entry: Entry, turn: Turn, bench: Bench, *, sandbox: str, command: str, job_id: str | None
    ) -> Job:
        running = await store.running_in(entry.connection, sandbox)
        if running >= self._most_running:
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
            provider=bench.provider,
            sandbox=sandbox,
            sandbox_record=bench.sandbox_record,
            workspace=bench.workspace,
            token_digest=hashlib.sha256(token.encode()).digest(),
            token_sealed=self._vault.seal(context("jobs", new, "token"), token).encode(),
            created_at=utc_now(),
        )
        await store.insert_job(entry.connection, job)
        entry.tell(
            Event.now(
                Kind.JOB_STARTED,
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
        token = self._vault.reveal(context("jobs", job.id, "token"), job.token_sealed.decode())
        self._checkpoint("job.before_spawn")
        await sandbox.spawn(sandbox_model.Job(id=job.id, script=job.command, token=token))
        self._checkpoint("job.after_spawn")
        async with self._ledger.database.begin() as connection:
            await store.mark_spawned(connection, job.id, sandbox=str(sandbox.id))

    async def complete(
        self, job_id: str, token: str, *, exit_code: int, output: bytes, truncated: bool = False
    ) -> bool:
        """Take a sandbox's word for a job's end; False for an unknown id or a wrong token alike.

        The same valid token again is True and changes nothing.
        """
        async with self._ledger.database.read() as connection:
            job = await store.by_id(connection, job_id)
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = job.token_digest if job else b"\0" * 32
        if not hmac.compare_digest(digest, known) or job is None:
            return False
        stopping = job.stop_requested_at is not None
        end = ended(exit_code, output, truncated=truncated, stopping=stopping, reason=job.reason)
        await self.settle(job, end)
        return True

    async def settle(self, job: Job, end: JobEnd) -> bool:
        """End a job, queue its follow-up turn and tell everybody, once; False when it had ended already."""
        if end.state is not JobState.LOST:  # nobody answers for its sandbox
            await self._files.gather_job(job)
            await self._workbench.bring_back(job)
        async with self._ledger.entry("job.settle") as entry:
            if not await store.settle(entry.connection, job.id, end):
                return False
            await self._follow_up(entry, job, end)
        return True

    async def _follow_up(self, entry: Entry, job: Job, end: JobEnd) -> None:
        turn = Turn(
            id=new_id("trn"),
            account=job.account,
            conversation=job.conversation,
            agent=job.agent,
            trigger="job",
            job=job.id,
            asker=job.asker,
            input=told(end, job.command, job.id),
            notify=True,
            created_at=utc_now(),
        )
        await turns.insert_turn(entry.connection, turn)
        routes = await delivery_store.routes_for(entry.connection, job.conversation, job.turn)
        for route in routes:
            if route.kind is RouteKind.WEBHOOK and route.turn == job.turn:
                await delivery_store.add_route(entry.connection, route.for_turn(turn.id))
        taken = await self._files.take(entry, job.conversation, job=job.id)
        result: dict[str, object] = {
            "resultId": job.id,
            "command": job.command,
            "exit_code": end.exit_code,
            "output": end.output[-TOLD_LIMIT:],
            "truncated": end.truncated or len(end.output) > TOLD_LIMIT,
            "files": list(taken.files),
        }
        if result["truncated"]:
            result["url"] = f"/jobs/{job.id}/logs"
        if end.reason:
            result["reason"] = end.reason
        entry.tell(
            Event.now(ANNOUNCED[end.state], job.conversation, result, turn=job.turn),
            Event.now(
                Kind.TURN_QUEUED,
                job.conversation,
                {"trigger": "job", "attempt": 0, "resultId": job.id},
                turn=turn.id,
            ),
        )
        await taken.tell(entry, job.conversation)
        entry.wake(Queue.TURN, job.conversation)

    async def look(self, job: Job) -> tuple[Job, bytes, bool]:
        """Return the job as it is now, its output so far, and whether that is cut; settles an ended job."""
        if job.state is not JobState.RUNNING:
            return job, job.output.encode(), job.truncated
        report = await (await self._workbench.sandbox_of(job)).report(job.id)
        await self._judge(job, report)
        async with self._ledger.database.read() as connection:
            now = await store.by_id(connection, job.id)
        return now or job, report.output, report.truncated

    async def stop(self, job: Job) -> None:
        """End a job: TERM, then KILL; it is settled as stopped."""
        async with self._ledger.database.begin() as connection:
            if not await store.request_stop(connection, job.id):
                return
        sandbox = await self._workbench.sandbox_of(job)
        await sandbox.stop(job.id)
        report = await sandbox.report(job.id)
        await self.settle(job, ended(report.exit_code or 143, report.output, stopping=True))

    async def end(self, job: Job, why: str) -> None:
        """End a job that may not go on; it is settled as failed for that reason, whoever is first to say so.

        Where its sandbox cannot be asked it is settled all the same.
        """
        async with self._ledger.database.begin() as connection:
            if not await store.mark_ending(connection, job.id, why):
                return
        try:
            sandbox = await self._workbench.sandbox_of(job)
            await sandbox.stop(job.id)
            report = await sandbox.report(job.id)
        except SandboxError as error:
            log.warning("job.not_stopped", job=job.id, error=str(error))
            report = sandbox_model.JobReport(state=sandbox_model.JobState.UNKNOWN)
        code, stopping = report.exit_code, job.stop_requested_at is not None
        if code is None:
            await self.settle(job, _failed(why, report.output))
        else:
            end = ended(code, report.output, truncated=report.truncated, stopping=stopping, reason=why)
            await self.settle(job, end)

    async def reconcile(self, stop: asyncio.Event, *, every: float) -> None:
        """Ask after running jobs whose callback may never come, until stopped."""
        while not stop.is_set():
            try:
                await self._ask_after_all()
            except Unavailable as error:
                log.warning("jobs.reconcile_waits", error=str(error))
            except Exception:  # the outermost loop of the reconciler: it must look again
                log.exception("jobs.reconcile_failed")
            try:
                async with asyncio.timeout(every):
                    await stop.wait()
            except TimeoutError:
                continue

    async def _ask_after_all(self) -> None:
        async with self._ledger.database.read() as connection:
            running = await store.running(connection)
        for job in running:
            try:
                await self._ask_after(job)
            except Gone as error:
                await self._has_gone(job, error)
            except SandboxError as error:
                await self._miss(job, error)

    async def _ask_after(self, job: Job) -> None:
        sandbox = await self._workbench.sandbox_of(job)
        if job.stop_requested_at is not None or job.reason is not None:
            await sandbox.stop(job.id)
        report = await sandbox.report(job.id)
        if job.unreachable_since is not None:
            async with self._ledger.database.begin() as connection:
                await store.mark_reachable(connection, job.id, since=None)
        await self._judge(job, report)

    async def _judge(self, job: Job, report: sandbox_model.JobReport) -> None:
        match report.state:
            case sandbox_model.JobState.EXITED:
                stopping = job.stop_requested_at is not None
                code = 137 if report.exit_code is None else report.exit_code
                end = ended(
                    code, report.output, truncated=report.truncated, stopping=stopping, reason=job.reason
                )
                await self.settle(job, end)
            case sandbox_model.JobState.RECREATED:
                await self.settle(job, _failed("sandbox_recreated", report.output))
            case sandbox_model.JobState.UNKNOWN if _age(job.created_at) > NEVER_STARTED_AFTER:
                await self.settle(job, _failed("never_started", b""))
            case sandbox_model.JobState.RUNNING if report.overfull:
                await self.end(job, WORKSPACE_FULL)
            case _:
                return

    async def _has_gone(self, job: Job, error: Gone) -> None:
        """End a job whose machine is gone; one that is only being started gets another machine."""
        if job.spawned_at is not None or _age(job.created_at) > NEVER_STARTED_AFTER:
            log.warning("job.sandbox_gone", job=job.id, error=str(error))
            await self.settle(job, _failed("sandbox_recreated", b""))

    async def _miss(self, job: Job, error: SandboxError) -> None:
        since = job.unreachable_since or utc_now()
        log.warning("job.unreachable", job=job.id, since=since.isoformat(), error=str(error))
        if _age(since) > LOST_AFTER:
            await self.settle(job, JobEnd(state=JobState.LOST, reason="provider_unreachable"))
        elif job.unreachable_since is None:
            async with self._ledger.database.begin() as connection:
                await store.mark_reachable(connection, job.id, since=since)


def _failed(reason: str, output: bytes) -> JobEnd:
    return JobEnd(state=JobState.FAILED, output=output.decode("utf-8", "replace"), reason=reason)


def _age(since: datetime) -> float:
    return (utc_now() - since).total_seconds()
