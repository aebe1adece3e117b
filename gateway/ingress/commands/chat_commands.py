"""Commands of chats and clients: `/new`, `/stop` and the others that `HELP` explains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from channels.message import Author
from delivery.broker.port import WorkQueue
from delivery.deliveries.transactions import Transaction
from delivery.errors import as_sentence
from gateway.accounts.usage_report import render_usage
from gateway.conversations.approver_rules import DecisionContext
from gateway.conversations.commands.branching import undo_last_exchange
from gateway.conversations.commands.compaction import queue_compaction
from gateway.conversations.commands.model_choice import execute_model_command
from gateway.conversations.commands.room_verbosity import execute_verbose_command
from gateway.conversations.commands.session_reset import begin_again
from gateway.conversations.retry import retry_in
from gateway.conversations.submissions.queue_policy import queue_policy
from gateway.conversations.titles import rename
from gateway.ingress.commands.approval_commands import answer_by_command, decide_by_command
from gateway.ingress.commands.sandbox_commands import SandboxCommands, render_job
from gateway.ingress.commands.schedule_commands import execute_schedule_command
from gateway.ingress.confidential_replies import ReplyConfidentially, ReplyPrivately
from gateway.memory.chat_command import execute_memory_command
from gateway.memory.link_command import execute_link_command
from gateway.records.agent import OperatorModel
from gateway.schedules.schedules import ScheduleSettings
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.job_state import JobState
from gateway.store.turn_state import QUEUE_LIMIT, QueueMode, TurnState
from gateway.store.turns import jobs, turn_retries, turns
from gateway.store.turns.turns import Turn
from gateway.tools.mcp.chat_command import (
    execute_sign_in_command,
    execute_sign_out_command,
    render_help,
)
from gateway.tools.mcp.sign_ins.links import SignInLinks

HELP = (
    "`/new` starts a new conversation, `/stop` stops what is running, "
    "`/retry` tries again what failed or waits for another attempt, `/undo` takes back the last exchange, "
    "`/status` shows what is running, "
    "`/jobs` lists background jobs (`/jobs logs ID`, `/jobs stop ID`), "
    "`/approve ID` and `/deny ID` decide about a command, `/answer ID TEXT` answers a question, "
    "`/queue` shows what happens to messages "
    "that arrive while something runs (`/queue followup`, `collect`, `steer`, `interrupt` or `default` "
    "changes it), `/schedule` and `/remind` start something or remind you at a time (`/remind in 20m tea`), "
    "`/model` shows or selects the model, `/compact` summarises what was said so far, "
    "`/verbose on` shows the tools that run, "
    "`/memory` lists my notes for this chat, `/usage` shows what this conversation has used, "
    "`/link` links your accounts on several platforms, "
    "`/signin` gives you the links with which you sign in to services (`/signout NAME` ends that), "
    "`/title TEXT` names this conversation in lists, `/help` shows this."
)

MAX_QUOTED = 60
"""Characters of a message that are quoted in a status line."""


QUEUE_MODE_TEXTS = {
    QueueMode.FOLLOWUP: "waits for its own turn",
    QueueMode.COLLECT: "is answered together with the others that wait",
    QueueMode.STEER: "reaches the running turn at its next step",
    QueueMode.INTERRUPT: "cancels the running turn and is answered next",
}

STOPPED = "stopped"
"""Cancel reason of a turn that a person stopped."""

STOPPED_WHILE_QUEUED = "stopped in line"
"""Cancel reason of a turn that was queued behind a stopped one; it is not reported in the chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCommand:
    """A command and its arguments."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The result of a command: its reply (None: it follows later), and the turns to cancel.

    Only the person who gave the command may read a confidential reply.
    """

    reply: str | None
    ended_turns: tuple[str, ...] = ()
    is_confidential: bool = False


def parse(text: str) -> ParsedCommand | None:
    """Parse a command; None for anything else (an unknown `/word` goes to the agent)."""
    words = text.split()
    if not words or not words[0].startswith("/"):
        return None
    return to_command(words[0][1:].lower(), words[1:])


def to_command(name: str, args: Sequence[str]) -> ParsedCommand | None:
    """Return the command of this name; None if there is none."""
    name = "help" if name == "start" else name
    return ParsedCommand(name=name, args=tuple(args)) if name in ChatCommands.NAMES else None


class ChatCommands:
    """Executes commands. `reply_privately` answers a button press or slash command.

    `reply_confidentially` answers a command of a room so that only its author can read the answer.
    `limit`: how many turns may wait if neither the agent nor the conversation has a limit.
    """

    NAMES = (
        *("new", "stop", "retry", "undo", "status", "jobs", "approve", "deny", "answer", "queue"),
        *("model", "compact", "verbose", "link", "signin", "signout"),
        *("schedule", "remind", "memory", "usage", "title", "help"),
    )
    ALWAYS = ("stop", "approve", "deny", "answer")
    """Commands that are executed over the rate limit, and in groups without a mention."""

    CONFIDENTIAL = ("signin",)
    """Commands whose replies are for the person alone who gave them."""

    def __init__(
        self,
        reply_privately: ReplyPrivately,
        sandbox_commands: SandboxCommands,
        *,
        reply_confidentially: ReplyConfidentially,
        limit: int = QUEUE_LIMIT,
        schedules: ScheduleSettings = ScheduleSettings(),  # noqa: B008 - immutable
        operator_model: OperatorModel = OperatorModel(),  # noqa: B008 - immutable
        sign_in_links: SignInLinks | None = None,
    ) -> None:
        self.sign_in_links = sign_in_links
        self.reply_privately = reply_privately
        self.reply_confidentially = reply_confidentially
        self._sandbox_commands = sandbox_commands
        self._limit = limit
        self._schedules = schedules
        self.timezone = schedules.timezone
        self._operator_model = operator_model

    async def execute(
        self,
        tx: Transaction,
        conversation: Conversation,
        command: ParsedCommand,
        *,
        by: Author,
        decision_context: DecisionContext | None,
    ) -> CommandResult:
        """Execute a command in the caller's transaction and return its result.

        Without a `decision_context` the account itself decides about approvals.
        """
        if command.name == "stop":
            return await self._stop(tx, conversation)

        async def decide() -> str | None:
            return await decide_by_command(
                tx, conversation, command.name, command.args, by=by, decision_context=decision_context
            )

        replies: Mapping[str, Callable[[], Awaitable[str | None]]] = {
            "approve": decide,
            "answer": lambda: answer_by_command(
                tx, conversation, command.args, by=by, decision_context=decision_context
            ),
            "deny": decide,
            "retry": lambda: self._retry(tx, conversation),
            "jobs": lambda: self._jobs(tx, conversation, command.args),
            "queue": lambda: self._queue(tx, conversation, command.args),
            "status": lambda: self._status(tx, conversation, by.id),
            "new": lambda: self._new(tx, conversation),
            "undo": lambda: undo_last_exchange(tx, conversation, by=by.id),
            "model": lambda: execute_model_command(tx, conversation, command.args, self._operator_model),
            "compact": lambda: queue_compaction(
                tx, conversation, self._operator_model, by=by.id, limit=self._limit
            ),
            "verbose": lambda: execute_verbose_command(tx, conversation, command.args),
            "memory": lambda: execute_memory_command(
                tx, conversation, command.args, by=by.id, is_owner=decision_context is None
            ),
            "usage": lambda: render_usage(tx.connection, conversation, by=by.id, timezone=self.timezone),
            "help": lambda: render_help(tx, conversation, HELP, by=by.id),
            "link": lambda: execute_link_command(tx, conversation, command.args, by=by),
            "signin": lambda: execute_sign_in_command(tx, conversation, self.sign_in_links, by=by.id),
            "signout": lambda: execute_sign_out_command(
                tx, conversation, self.sign_in_links, command.args, by=by.id
            ),
            "title": lambda: self._title(tx, conversation, " ".join(command.args)),
            "schedule": lambda: self._schedule(tx, conversation, command, by),
            "remind": lambda: self._schedule(tx, conversation, command, by),
        }
        reply = await replies[command.name]()
        is_in_room = conversation.channel is not None and not conversation.direct
        return CommandResult(reply=reply, is_confidential=is_in_room and command.name in self.CONFIDENTIAL)

    async def _schedule(
        self, tx: Transaction, conversation: Conversation, command: ParsedCommand, by: Author
    ) -> str:
        return await execute_schedule_command(
            tx, conversation, command.name, command.args, by=by.id, settings=self._schedules
        )

    @staticmethod
    async def _new(tx: Transaction, conversation: Conversation) -> str:
        await begin_again(tx, conversation)
        return "A new conversation begins with your next message."

    @staticmethod
    async def _stop(tx: Transaction, conversation: Conversation) -> CommandResult:
        """Cancel the running and waiting turns, except follow-up turns of jobs that have not started."""
        queue = await turns.list_open(tx.connection, conversation.id)
        ended = [turn for turn in queue if turn.trigger != "job" or turn.attempt]
        for turn in ended:
            why = STOPPED if turn.attempt or turn == ended[0] else STOPPED_WHILE_QUEUED
            await turns.request_cancel(tx.connection, turn.id, reason=why)
        tx.wake(WorkQueue.TURN, conversation.id, account=conversation.account)
        reply = f"Stopping {len(ended)} {_turns(len(ended))}." if ended else "Nothing is running."
        return CommandResult(reply=reply, ended_turns=tuple(turn.id for turn in ended))

    @staticmethod
    async def _retry(tx: Transaction, conversation: Conversation) -> str:
        """Run the turns that wait for another attempt now, else repeat the newest one that failed."""
        queue = await turns.list_open(tx.connection, conversation.id)
        waiting = [turn for turn in queue if turn.is_delayed]
        failed = None if waiting else await turn_retries.last_failed(tx.connection, conversation.id)
        for turn in [*waiting, *([failed] if failed else [])]:
            await retry_in(tx, turn)
        names = ", ".join(_quoted(turn) for turn in ([failed] if failed else waiting))
        return f"Trying again: {names}." if names else "There is nothing to retry."

    async def _queue(self, tx: Transaction, conversation: Conversation, args: Sequence[str]) -> str:
        if not args:
            policy = await queue_policy(tx.connection, conversation, limit=self._limit)
            return (
                f"Queue mode `{policy.mode}`: a message that arrives while something runs "
                f"{QUEUE_MODE_TEXTS[policy.mode]}. At most {policy.limit} may wait."
            )
        wanted = args[0].lower()
        if wanted != "default" and wanted not in set(QueueMode):
            return f"There is no queue mode `{wanted[:20]}`; there are {', '.join(QueueMode)} and default."
        mode = None if wanted == "default" else wanted
        await conversations.set_queue(
            tx.connection, conversation.id, mode=mode, limit=conversation.queue_limit
        )
        if mode is None:
            return "Messages that arrive while something runs follow the agent's queue mode."
        return (
            f"From now on, a message that arrives while something runs {QUEUE_MODE_TEXTS[QueueMode(mode)]}."
        )

    @staticmethod
    async def _title(tx: Transaction, conversation: Conversation, text: str) -> str:
        if not text:
            return f"This conversation is called: {conversation.title or conversation.id}"
        title = await rename(tx.connection, conversation.id, text)
        return f"This conversation is now called: {title or conversation.id}"

    async def _status(self, tx: Transaction, conversation: Conversation, by: str) -> str:
        queue = await turns.list_open(tx.connection, conversation.id)
        running = await jobs.list_for_account(
            tx.connection, conversation.account, conversation=conversation.id, state="running"
        )
        parts = [render_queue(queue, by)]
        if running:
            parts.append(
                f"{len(running)} background {'job is' if len(running) == 1 else 'jobs are'} running."
            )
        return " ".join([*parts, f"This is conversation {conversation.id}."])

    async def _jobs(self, tx: Transaction, conversation: Conversation, args: Sequence[str]) -> str | None:
        if len(args) == 2 and args[0] in {"logs", "stop"}:  # noqa: PLR2004 - a verb and an id
            return await self._one_job(tx, conversation, args[0], args[1])
        found = await jobs.list_for_account(
            tx.connection, conversation.account, conversation=conversation.id, limit=20
        )
        return "\n".join(f"- {job.id} {job.state}: `{job.command[:80]}`" for job in found) or "No jobs yet."

    async def _one_job(
        self, tx: Transaction, conversation: Conversation, verb: str, job_id: str
    ) -> str | None:
        """Return the reply about a job; None if a queued sandbox command posts it."""
        job = await jobs.get(tx.connection, conversation.account, job_id, conversation=conversation.id)
        if job is None:
            return f"There is no job {job_id} in this conversation."
        if job.state is not JobState.RUNNING:
            return render_job(job, job.output)
        if verb == "logs":
            self._sandbox_commands.show_output(job.id)
            return None
        self._sandbox_commands.stop_job(job.id)
        return f"Stopping job {job.id}."


def render_queue(queue: Sequence[Turn], by: str) -> str:
    """Return the state of a conversation's queue and the position of the person who asks."""
    if not queue:
        return "Nothing is running."
    queue = sorted(queue, key=lambda turn: turn.trigger == "job" and turn.is_delayed)
    first, behind = queue[0], len(queue) - 1
    if first.is_delayed and first.next_at is not None:
        text = f"Attempt {first.attempt + 1} of {_quoted(first)} follows at {first.next_at:%H:%M:%S} UTC: "
        text += as_sentence(first.error or "unknown error")
    else:
        text = _activity(first)
    own = next((place for place, turn in enumerate(queue) if turn.asker == by), 0)
    if behind:
        text += f" {behind} more {'waits' if behind == 1 else 'wait'} in line" + (
            f", yours is number {own}." if own else "."
        )
    return text


def _activity(first: Turn) -> str:
    return {
        TurnState.RUNNING: f"Working on {_quoted(first)}.",
        TurnState.WAITING: f"Waiting for a decision about {_quoted(first)}.",
    }.get(first.state, f"About to begin with {_quoted(first)}.")


def _quoted(turn: Turn) -> str:
    if turn.trigger == "job":
        return "a job's result"
    text = " ".join(turn.input.split()).replace("`", "'")
    return f"`{text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + '…'}`"


def _turns(count: int) -> str:
    return "turn" if count == 1 else "turns"
