"""Chat commands: `/new /stop /status /jobs /approve /deny /queue /help`, obeyed where they are heard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from channels.message import Author, ButtonPress, Command
from delivery.broker.port import WorkQueue
from delivery.deliveries.transactions import Transaction
from gateway.conversations.approval_question import render_call
from gateway.conversations.approvals import AlreadyDecided, ApprovalNotFound, NotAllowed, decide_in
from gateway.conversations.approver_rules import DecisionContext
from gateway.conversations.queue_policy import queue_policy
from gateway.ingress.sandbox_commands import SandboxCommands, render_job
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.job_state import JobState
from gateway.store.turn_state import QUEUE_LIMIT, QueueMode, TurnState
from gateway.store.turns import jobs, turns
from gateway.store.turns.turns import Turn

HELP = (
    "`/new` starts a new conversation, `/stop` stops what is running, `/status` tells what is going on, "
    "`/jobs` lists background jobs (`/jobs logs ID`, `/jobs stop ID`), "
    "`/approve ID` and `/deny ID` decide about a command, `/queue` tells what happens to messages that come "
    "while something runs (`/queue followup`, `collect`, `steer`, `interrupt` or `default` changes it), "
    "`/help` shows this."
)

MAX_QUOTED = 60
"""Characters of a message shown where only a reminder of it is needed."""


QUEUE_MODE_TEXTS = {
    QueueMode.FOLLOWUP: "waits and is answered in its turn",
    QueueMode.COLLECT: "is answered together with the others that came meanwhile",
    QueueMode.STEER: "is heard by what runs at its next step",
    QueueMode.INTERRUPT: "ends what runs and is answered next",
}

STOPPED = "stopped"
"""Why a turn ended that somebody stopped."""

STOPPED_WHILE_QUEUED = "stopped in line"
"""Why a turn ended that waited behind a stopped one: said once is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCommand:
    """A command word and what follows it."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What came of a command: what to say (None: it is said later), and the turns that are to end."""

    reply: str | None
    ended_turns: tuple[str, ...] = ()


def parse(text: str) -> ParsedCommand | None:
    """Read a command; None for anything else (an unknown `/word` is the agent's to hear)."""
    words = text.split()
    if not words or not words[0].startswith("/"):
        return None
    return to_command(words[0][1:].lower(), words[1:])


def to_command(name: str, args: Sequence[str]) -> ParsedCommand | None:
    """Return a command of ours; None for a word that is none."""
    name = "help" if name == "start" else name
    return ParsedCommand(name=name, args=tuple(args)) if name in ChatCommands.NAMES else None


ReplyPrivately = Callable[[ButtonPress | Command, str], Awaitable[None]]


class ChatCommands:
    """Obeys commands. `answer` answers a press or a slash command; `errands` reach into sandboxes soon.

    `limit`: how many turns may wait where neither agent nor conversation says so.
    """

    NAMES = ("new", "stop", "status", "jobs", "approve", "deny", "queue", "help")
    ALWAYS = ("stop", "approve", "deny")
    """Obeyed however much somebody has said before, and in groups without a mention."""

    def __init__(
        self, reply_privately: ReplyPrivately, sandbox_commands: SandboxCommands, *, limit: int = QUEUE_LIMIT
    ) -> None:
        self.reply_privately = reply_privately
        self._sandbox_commands = sandbox_commands
        self._limit = limit

    async def execute(
        self,
        tx: Transaction,
        conversation: Conversation,
        command: ParsedCommand,
        *,
        by: Author,
        decision_context: DecisionContext,
    ) -> CommandResult:
        """Carry a command out in the caller's transaction, and return what to say of it."""
        if command.name == "stop":
            return await self._stop(tx, conversation)
        if command.name in {"approve", "deny"}:
            said: str | None = await self._decide(tx, conversation, command, by, decision_context)
        elif command.name == "jobs":
            said = await self._jobs(tx, conversation, command.args)
        elif command.name == "queue":
            said = await self._queue(tx, conversation, command.args)
        elif command.name == "status":
            said = await self._status(tx, conversation, by.id)
        elif command.name == "new":
            said = await self._new(tx, conversation)
        else:
            said = HELP
        return CommandResult(reply=said)

    @staticmethod
    async def _new(tx: Transaction, conversation: Conversation) -> str:
        await conversations.detach_address(tx.connection, conversation.id)
        return "A new conversation begins with your next message."

    @staticmethod
    async def _stop(tx: Transaction, conversation: Conversation) -> CommandResult:
        """End what runs and what waits, a job's follow-up that has not begun excepted."""
        line = await turns.list_open(tx.connection, conversation.id)
        ended = [turn.id for place, turn in enumerate(line) if not place or turn.trigger != "job"]
        if line and line[0].trigger == "job" and not line[0].attempt:
            ended.remove(line[0].id)
        for turn in ended:
            why = STOPPED if turn == ended[0] else STOPPED_WHILE_QUEUED
            await turns.request_cancel(tx.connection, turn, reason=why)
        tx.wake(WorkQueue.TURN, conversation.id)
        said = f"Stopping {len(ended)} {_turns(len(ended))}." if ended else "Nothing is running."
        return CommandResult(reply=said, ended_turns=tuple(ended))

    async def _queue(self, tx: Transaction, conversation: Conversation, args: Sequence[str]) -> str:
        if not args:
            policy = await queue_policy(tx.connection, conversation, limit=self._limit)
            return (
                f"Queue mode `{policy.mode}`: a message that comes while something runs "
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
            return "Messages that come while something runs are treated as the agent says."
        return f"From now on, a message that comes while something runs {QUEUE_MODE_TEXTS[QueueMode(mode)]}."

    async def _status(self, tx: Transaction, conversation: Conversation, by: str) -> str:
        line = await turns.list_open(tx.connection, conversation.id)
        running = await jobs.list_for_account(
            tx.connection, conversation.account, conversation=conversation.id, state="running"
        )
        told = [render_queue(line, by)]
        if running:
            told.append(f"{len(running)} background {'job is' if len(running) == 1 else 'jobs are'} running.")
        return " ".join([*told, f"This is conversation {conversation.id}."])

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
        """Return what to say of a job now; None when an errand will say it."""
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

    @staticmethod
    async def _decide(
        tx: Transaction,
        conversation: Conversation,
        command: ParsedCommand,
        by: Author,
        decision_context: DecisionContext,
    ) -> str:
        if not command.args:
            return f"Which one? `/{command.name} ID`"
        try:
            decided = await decide_in(
                tx,
                conversation.account,
                command.args[0],
                approved=command.name == "approve",
                by=by.id,
                name=by.name,
                comment=" ".join(command.args[1:]),
                decision_context=decision_context,
            )
        except ApprovalNotFound:
            return f"There is no approval {command.args[0]} here."
        except NotAllowed as error:
            return str(error)
        except AlreadyDecided as error:
            return f"Too late: {error}."
        return f"{decided.state.capitalize()}: `{render_call(decided.tool, decided.args)[:200]}`"


def render_queue(queue: Sequence[Turn], by: str) -> str:
    """Return how a conversation's turns stand, the first at work, and where in line who asks is."""
    if not queue:
        return "Nothing is running."
    first, behind = queue[0], len(queue) - 1
    told = {
        TurnState.RUNNING: f"Working on {_quoted(first)}.",
        TurnState.WAITING: f"Waiting for a decision about {_quoted(first)}.",
    }.get(first.state, f"About to begin with {_quoted(first)}.")
    own = next((place for place, turn in enumerate(queue) if turn.asker == by), 0)
    if behind:
        told += f" {behind} more {'waits' if behind == 1 else 'wait'} in line" + (
            f", yours is number {own}." if own else "."
        )
    return told


def _quoted(turn: Turn) -> str:
    if turn.trigger == "job":
        return "a job's result"
    text = " ".join(turn.input.split()).replace("`", "'")
    return f"`{text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + '…'}`"


def _turns(count: int) -> str:
    return "turn" if count == 1 else "turns"
