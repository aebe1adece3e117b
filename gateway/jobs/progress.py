"""The progress of running jobs: events with the time and the end of the output, less and less often.

Chats show them in one message, which the job's end changes a last time. A job that ends within `after`
seconds has none. A report is committed with its count, under a lock of the job's row: replicas, repetitions
and a crash make no second one, and none follows the job's end.
"""

from __future__ import annotations

from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType, new_id
from gateway.jobs.settlement import age_seconds
from gateway.store.turns import job_progress as store
from gateway.store.turns.jobs import Job

MAX_INTERVAL = 600.0
"""Seconds between two reports of a job that has been running for long."""

MAX_PROGRESS_OUTPUT = 2000
"""Characters of output in one report, from its end."""


def due_after(reports: int, after: float) -> float:
    """Return the age of a job, in seconds, at which the next report is due.

    The intervals double from `after` to MAX_INTERVAL.
    """
    age, interval = after, after
    for counted in range(reports):
        if interval >= MAX_INTERVAL:
            return age + (reports - counted) * interval
        age, interval = age + interval, min(2 * interval, max(after, MAX_INTERVAL))
    return age


class JobProgress:
    """Reports the progress of jobs that run longer than `after` seconds; 0: of none."""

    def __init__(self, transactions: Transactions, *, after: float) -> None:
        self._transactions = transactions
        self._after = after
        self._reports: dict[str, int] = {}

    async def report(self, job: Job, output: bytes) -> None:
        """Report a running job, if that is due; `output` is the end of its output."""
        age = age_seconds(job.created_at)
        if not self._after or age < due_after(self._reports.get(job.id, 0), self._after):
            return
        async with self._transactions.begin("job.progress") as tx:
            if await store.lock_running(tx.connection, job.id):
                await self._report(tx, job, output, age)

    async def _report(self, tx: Transaction, job: Job, output: bytes, age: float) -> None:
        earlier = await store.get(tx.connection, job.id)
        reports = earlier.reports if earlier is not None else 0
        self._reports[job.id] = reports
        if age < due_after(reports, self._after):
            return  # another process has reported it
        text = output[-4 * MAX_PROGRESS_OUTPUT :].decode("utf-8", "replace").replace("\0", "\ufffd")
        event = new_id("evt")
        data: dict[str, object] = {
            "resultId": job.id,
            "command": job.command,
            "seconds": round(age),
            "output": text[-MAX_PROGRESS_OUTPUT:],
        }
        if earlier is not None:
            data["replaces"] = earlier.event
        await store.count(tx.connection, job.id, event=event)
        tx.emit(Event.now(EventType.JOB_PROGRESS, job.conversation, data, turn=job.turn, event_id=event))

    def keep_only(self, running: frozenset[str]) -> None:
        """Forget the jobs that have ended."""
        self._reports = {job: reports for job, reports in self._reports.items() if job in running}
