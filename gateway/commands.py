"""Chat commands: `/new /stop /status /jobs /approve /deny /help`, obeyed where they are heard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from channels.message import Author, Press
from delivery.ledger import Entry
from delivery.port import Queue
from gateway.approvals import AlreadyDecided, NoSuchApproval, decide_in
from gateway.errands import Errands, tell_job
from gateway.job import JobState
from gateway.notice import give_notice
from gateway.store import conversations, jobs, turns
from gateway.store.conversations import Conversation
from gateway.store.turns import Turn
from gateway.turn import TurnState

HELP = (
    "`/new` starts a new conversation, `/stop` stops what is running, `/status` tells what is going on, "
    "`/jobs` lists background jobs (`/jobs logs ID`, `/jobs stop ID`), "
    "`/approve ID` and `/deny ID` decide about a command, `/help` shows this."
)

SHOWN = 60
"""Characters of a message shown where only a reminder of it is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command word and what follows it."""

    name: str
    words: tuple[str, ...] = ()


def parse(text: str) -> Command | None:
    """Read a command; None for anything else (an unknown `/word` is the agent's to hear)."""
    words = text.split()
    if not words or not words[0].startswith("/"):
        return None
    name = words[0][1:].lower()
    name = "help" if name == "start" else name
    return Command(name=name, words=tuple(words[1:])) if name in Commands.NAMES else None


Answering = Callable[[Press, str], Awaitable[None]]


class Commands:
    """Obeys commands. `answer` answers a button press; `errands` reach into sandboxes soon."""

    NAMES = ("new", "stop", "status", "jobs", "approve", "deny", "help")

    def __init__(self, answering: Answering, errands: Errands) -> None:
        self.answer = answering
        self._errands = errands

    async def obey(self, entry: Entry, conversation: Conversation, command: Command, *, by: Author) -> None:
        """Carry a command out and say what came of it, in the caller's transaction."""
        if command.name in {"approve", "deny"}:
            said: str | None = await self._decide(entry, conversation, command, by)
        elif command.name == "jobs":
            said = await self._jobs(entry, conversation, command.words)
        elif command.name == "status":
            said = await self._status(entry, conversation, by.id)
        elif command.name == "help":
            said = HELP
        else:
            said = await getattr(self, f"_{command.name}")(entry, conversation)
        if said is not None:
            await give_notice(entry, conversation.id, said)

    async def _new(self, entry: Entry, conversation: Conversation) -> str:
        await conversations.leave_address(entry.connection, conversation.id)
        return "A new conversation begins with your next message."

    async def _stop(self, entry: Entry, conversation: Conversation) -> str:
        stopped = 0
        for turn in await turns.open_turns(entry.connection, conversation.id):
            await turns.request_cancel(entry.connection, turn.id)
            stopped += 1
        entry.wake(Queue.TURN, conversation.id)
        return f"Stopping {stopped} {_turns(stopped)}." if stopped else "Nothing is running."

    async def _status(self, entry: Entry, conversation: Conversation, by: str) -> str:
        line = await turns.open_turns(entry.connection, conversation.id)
        running = await jobs.listed(
            entry.connection, conversation.account, conversation=conversation.id, state="running"
        )
        told = [tell_line(line, by)]
        if running:
            told.append(f"{len(running)} background {'job is' if len(running) == 1 else 'jobs are'} running.")
        return " ".join([*told, f"This is conversation {conversation.id}."])

    async def _jobs(self, entry: Entry, conversation: Conversation, words: Sequence[str]) -> str | None:
        if len(words) == 2 and words[0] in {"logs", "stop"}:  # noqa: PLR2004 - a verb and an id
            return await self._one_job(entry, conversation, words[0], words[1])
        found = await jobs.listed(
            entry.connection, conversation.account, conversation=conversation.id, limit=20
        )
        return "\n".join(f"- {job.id} {job.state}: `{job.command[:80]}`" for job in found) or "No jobs yet."

    async def _one_job(self, entry: Entry, conversation: Conversation, verb: str, job_id: str) -> str | None:
        """Return what to say of a job now; None when an errand will say it."""
        job = await jobs.find(entry.connection, conversation.account, job_id, conversation=conversation.id)
        if job is None:
            return f"There is no job {job_id} in this conversation."
        if job.state is not JobState.RUNNING:
            return tell_job(job, job.output)
        if verb == "logs":
            self._errands.look(job.id)
            return None
        self._errands.stop(job.id)
        return f"Stopping job {job.id}."

    @staticmethod
    async def _decide(entry: Entry, conversation: Conversation, command: Command, by: Author) -> str:
        approved = command.name == "approve"
        if not command.words:
            return f"Which one? `/{command.name} ID`"
        comment = " ".join(command.words[1:])
        try:
            decided = await decide_in(
                entry,
                conversation.account,
                command.words[0],
                approved=approved,
                by=by.id,
                name=by.name,
                comment=comment,
            )
        except NoSuchApproval:
            return f"There is no approval {command.words[0]} here."
        except AlreadyDecided as error:
            return f"Too late: {error}."
        return f"{decided.state.capitalize()}: `{decided.command[:200]}`"


def tell_line(line: Sequence[Turn], by: str) -> str:
    """Return how a conversation's turns stand, the first at work, and where in line who asks is."""
    if not line:
        return "Nothing is running."
    first, behind = line[0], len(line) - 1
    told = {
        TurnState.RUNNING: f"Working on {_quoted(first)}.",
        TurnState.WAITING: f"Waiting for a decision about {_quoted(first)}.",
    }.get(first.state, f"About to begin with {_quoted(first)}.")
    own = next((place for place, turn in enumerate(line) if turn.asker == by), 0)
    if behind:
        told += f" {behind} more {'waits' if behind == 1 else 'wait'} in line" + (
            f", yours is number {own}." if own else "."
        )
    return told


def _quoted(turn: Turn) -> str:
    if turn.trigger == "job":
        return "a job's result"
    text = " ".join(turn.input.split()).replace("`", "'")
    return f"`{text if len(text) <= SHOWN else text[: SHOWN - 1] + '…'}`"


def _turns(count: int) -> str:
    return "turn" if count == 1 else "turns"
