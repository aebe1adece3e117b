"""The end of a background job: settled once, with its follow-up turn, files and events."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime

import structlog

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.route import RouteKind
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType, new_id
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.collection import CollectedFiles, FileCollector
from gateway.jobs.report import report_held_up_jobs
from gateway.store.job_state import EVENT_KINDS, JobEnd, JobReason, JobState, job_end, render_result
from gateway.store.turn_state import TurnState
from gateway.store.turns import job_progress, turns
from gateway.store.turns import jobs as store
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn
from sandbox import model as sandbox_model
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

MAX_EVENT_OUTPUT = 32 * 1024
"""Characters of output in an event; the job's logs have the rest."""


class JobSettlement:
    """Settles jobs. A job is settled once, by whichever report of its end is committed first."""

    def __init__(
        self,
        transactions: Transactions,
        environment_resolver: EnvironmentResolver,
        *,
        file_collector: FileCollector,
    ) -> None:
        self._transactions = transactions
        self._environment_resolver = environment_resolver
        self._file_collector = file_collector

    async def authenticate(self, job_id: str, token: str) -> Job | None:
        """Return the job with this id and token; None if the id is unknown or the token is wrong."""
        async with self._transactions.database.read() as connection:
            job = await store.get_by_id(connection, job_id)
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = job.token_digest if job else b"\0" * 32
        if not hmac.compare_digest(digest, known) or job is None:
            return None
        return job

    async def complete(self, job: Job, *, exit_code: int, output: bytes, truncated: bool = False) -> None:
        """Settle a job from its sandbox's callback; a repetition changes nothing and collects nothing."""
        if job.state is not JobState.RUNNING:
            return
        stopping = job.stop_requested_at is not None
        end = job_end(exit_code, output, truncated=truncated, stopping=stopping, reason=job.reason)
        await self.settle(job, end)

    async def settle(self, job: Job, end: JobEnd) -> bool:
        """Settle a job and queue its follow-up turn, once; returns False if it was settled before.

        A job that was never started has no follow-up turn: its call failed, or its turn did.
        """
        if end.state is not JobState.LOST and not job.is_call:  # its sandbox can be asked
            await self._file_collector.collect_job(job)
            await self._environment_resolver.sync_job_files(job)
        async with self._transactions.begin("job.settle") as tx:
            if not await store.settle(tx.connection, job.id, end):
                return False
            if end.reason == JobReason.NEVER_STARTED:  # its turn has reported what prevented it
                tx.emit(_ended_event(job, end, CollectedFiles(), shown=None))
            else:
                await self._queue_follow_up(tx, job, end)
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
        collected = await self._file_collector.attach(tx, job.conversation, job=job.id)
        queued = {"trigger": "job", "attempt": 0, "resultId": job.id}
        progress = await job_progress.get(tx.connection, job.id)
        tx.emit(
            _ended_event(job, end, collected, shown=progress.event if progress else None),
            Event.now(EventType.TURN_QUEUED, job.conversation, queued, turn=turn.id),
        )
        await collected.emit_notice(tx, job.conversation)
        first = await turns.next_turn(tx.connection, job.conversation)
        if first is not None and (first.state is TurnState.WAITING or first.is_delayed):
            await report_held_up_jobs(tx, job.conversation, self._file_collector.list_for_turn)
        tx.wake(WorkQueue.TURN, job.conversation, account=job.account)

    async def fail(self, job: Job, reason: JobReason) -> None:
        """Stop a job that may not continue and settle it as failed for `reason`.

        It is settled even if its sandbox cannot be reached.
        """
        async with self._transactions.database.begin() as connection:
            if not await store.mark_ending(connection, job.id, reason):
                return
        try:
            sandbox = await self._environment_resolver.sandbox_of_job(job)
            await sandbox.stop(job.id)
            report = await sandbox.report(job.id)
        except SandboxError as error:
            log.warning("job.not_stopped", account=job.account, job=job.id, error=str(error))
            report = sandbox_model.JobReport(state=sandbox_model.BackgroundJobState.UNKNOWN)
        code, stopping = report.exit_code, job.stop_requested_at is not None
        if code is None:
            await self.settle(job, failed_end(reason, report.output))
        else:
            end = job_end(code, report.output, truncated=report.truncated, stopping=stopping, reason=reason)
            await self.settle(job, end)

    async def apply_report(self, job: Job, report: sandbox_model.JobReport) -> None:
        """Settle or stop a job if its sandbox's report calls for it."""
        match report.state:
            case sandbox_model.BackgroundJobState.EXITED:
                stopping = job.stop_requested_at is not None
                code = 137 if report.exit_code is None else report.exit_code
                unrecorded = JobReason.END_UNRECORDED if report.unrecorded and not stopping else None
                end = job_end(
                    code,
                    report.output,
                    truncated=report.truncated,
                    stopping=stopping,
                    reason=job.reason or unrecorded,
                )
                await self.settle(job, end)
            case sandbox_model.BackgroundJobState.RECREATED:
                await self.settle(job, failed_end(JobReason.SANDBOX_RECREATED, report.output))
            case sandbox_model.BackgroundJobState.RUNNING if report.over_quota:
                await self.fail(job, JobReason.WORKSPACE_FULL)
            case _:
                return


def _ended_event(job: Job, end: JobEnd, collected: CollectedFiles, *, shown: str | None) -> Event:
    """Return the event of a job's end; `shown` is the event whose chat message it changes."""
    result: dict[str, object] = {
        "resultId": job.id,
        "command": job.command,
        "exit_code": end.exit_code,
        "output": end.output[-MAX_EVENT_OUTPUT:],
        "truncated": end.truncated or len(end.output) > MAX_EVENT_OUTPUT,
        "files": list(collected.files),
    }
    if shown is not None:
        result |= {"seconds": round(age_seconds(job.created_at)), "replaces": shown}
    if result["truncated"]:
        result["url"] = f"/jobs/{job.id}/logs"
    if end.reason:
        result["reason"] = end.reason
    return Event.now(EVENT_KINDS[end.state], job.conversation, result, turn=job.turn)


def failed_end(reason: JobReason, output: bytes) -> JobEnd:
    """Return the end of a job that failed for a `reason` and has no exit code."""
    return JobEnd(state=JobState.FAILED, output=output.decode("utf-8", "replace"), reason=reason)


def age_seconds(since: datetime) -> float:
    """Return how many seconds ago a moment was."""
    return (utc_now() - since).total_seconds()
