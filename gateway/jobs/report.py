"""A job's own report: what people get when the follow-up turn ends without an answer."""

from __future__ import annotations

from delivery.database.engine import Connection
from delivery.deliveries.rendering import code_block
from gateway.store.job_state import REASON_TEXTS
from gateway.store.turns import jobs as store
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn

MAX_REPORT_OUTPUT = 3000
"""Characters of output in a report, so that it fits one message of most chats."""

MAX_REPORT_COMMAND = 200
"""Characters of the command in a report."""


def render_report(job: Job) -> str:
    """Return a job's id, command, exit code and the end of its output as a chat message."""
    command = " ".join(job.command.replace("`", "'").split())
    if len(command) > MAX_REPORT_COMMAND:
        command = f"{command[: MAX_REPORT_COMMAND - 1]}…"
    reason = REASON_TEXTS.get(job.reason or "", job.reason)
    code = f"exit code {job.exit_code}" if job.exit_code is not None else None
    how = ", ".join(filter(None, (reason, code))) or "no exit code"
    output = job.output.rstrip("\n")
    cut = job.truncated or len(output) > MAX_REPORT_OUTPUT
    shown = f" The end of its output (`dovecote jobs logs {job.id}` shows more):" if cut else ""
    return (
        f"Job {job.id} `{command}` {job.state}, {how}. The agent could not report it.{shown}\n\n"
        f"{code_block(output[-MAX_REPORT_OUTPUT:] or '(no output)')}"
    )


async def load_reported_job(connection: Connection, turn: Turn) -> Job | None:
    """Return the job that a follow-up turn is about; None for other turns and for a deleted job."""
    return await store.get_by_id(connection, turn.job) if turn.job is not None else None
