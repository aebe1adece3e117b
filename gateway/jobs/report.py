"""A job's own report: what people get, once, when the follow-up turn has no answer or none yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from delivery.database.engine import Connection
from delivery.deliveries.rendering import code_block
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType
from gateway.conversations.message_ids import report_message_id, running_message_id
from gateway.conversations.notices import post_notice
from gateway.store.conversations import messages
from gateway.store.job_state import REASON_TEXTS
from gateway.store.turns import jobs as store
from gateway.store.turns import turns
from gateway.store.turns.jobs import Job
from gateway.store.turns.turns import Turn

MAX_REPORT_OUTPUT = 3000
"""Characters of output in a report, so that it fits one message of most chats."""

MAX_REPORT_COMMAND = 200
"""Characters of the command in a report."""

ListFiles = Callable[[Connection, Turn], Awaitable[Sequence[dict[str, Any]]]]
"""Return the files of a turn, and of the job that it follows."""

NO_COMMENT = "The agent could not comment on it."
NO_COMMENT_YET = "The agent cannot comment on it yet."


def render_report(job: Job, comment: str = NO_COMMENT) -> str:
    """Return a job's id, command, exit code and the end of its output as a chat message."""
    reason = REASON_TEXTS.get(job.reason or "", job.reason)
    code = f"exit code {job.exit_code}" if job.exit_code is not None else None
    how = ", ".join(filter(None, (str(job.state), reason, code)))
    output = job.output.rstrip("\n")
    cut = job.truncated or len(output) > MAX_REPORT_OUTPUT
    shown = f" The end of its output (`dovecote jobs logs {job.id}` shows more):" if cut else ""
    return (
        f"Job {job.id} {_quote(job.command)} {how}. {comment}{shown}\n\n"
        f"{code_block(output[-MAX_REPORT_OUTPUT:] or '(no output)')}"
    )


def _quote(command: str) -> str:
    """Return the beginning of a command as a code span of one line."""
    line = " ".join(command.replace("`", "'").split())
    return f"`{line if len(line) <= MAX_REPORT_COMMAND else line[: MAX_REPORT_COMMAND - 1] + '…'}`"


async def post_running(tx: Transaction, turn: Turn) -> None:
    """Post, once for each, the running jobs of a turn that ends without an answer which could name them."""
    for job in await store.list_running_of(tx.connection, turn.conversation, turn.id):
        message = running_message_id(job.id)
        if await messages.get_by_id(tx.connection, message) is None:
            text = (
                f"The turn started job {job.id} {_quote(job.command)}; its result comes here when it is done."
            )
            await post_notice(tx, turn.conversation, text, turn=turn.id, message=message)


async def post_report(tx: Transaction, turn: Turn, comment: str = NO_COMMENT) -> dict[str, object] | None:
    """Post the report of a follow-up turn's job, once, and return it for `agent.finished`.

    Returns None if the turn is not a follow-up turn, its job was deleted, or the report was posted before.
    """
    job = await store.get_by_id(tx.connection, turn.job) if turn.job is not None else None
    if job is None or await messages.get_by_id(tx.connection, report_message_id(job.id)) is not None:
        return None
    report = render_report(job, comment)
    await post_notice(tx, turn.conversation, report, turn=turn.id, message=report_message_id(job.id))
    return {"output": report, "exit_code": job.exit_code}


async def report_early(
    tx: Transaction, turn: Turn, files: Sequence[dict[str, Any]], *, state: str, error: str | None = None
) -> None:
    """Report a follow-up turn's job to chat and webhook before the agent can comment on it, once."""
    report = await post_report(tx, turn, NO_COMMENT_YET)
    if report is None:
        return
    result: dict[str, object] = {"state": state} if error is None else {"state": state, "error": error}
    finished = finished_data(turn, result | report, files)
    tx.emit(Event.now(EventType.AGENT_FINISHED, turn.conversation, finished, turn=turn.id))


async def report_held_up_jobs(tx: Transaction, conversation: str, list_files: ListFiles) -> None:
    """Report the jobs whose follow-up turns are queued behind a turn that waits for a person or a retry."""
    for turn in await turns.list_open(tx.connection, conversation):
        if turn.trigger == "job" and not turn.attempt:
            await report_early(tx, turn, await list_files(tx.connection, turn), state=str(turn.state))


def finished_data(
    turn: Turn, result: dict[str, object], files: Sequence[dict[str, Any]] = ()
) -> dict[str, object]:
    """Return the data of `agent.finished`."""
    finished: dict[str, object] = {"turnId": turn.id, "agent": turn.agent, "trigger": turn.trigger}
    if turn.job is not None:
        finished["resultId"] = turn.job
    return (
        finished
        | {key: value for key, value in result.items() if key not in {"attempt", "replaces"}}
        | {"files": list(files)}
    )
