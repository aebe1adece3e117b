"""Chat commands: `/new /stop /status /jobs /approve /deny /help`, obeyed where they are heard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from channels.message import Press
from delivery.event import Event, Kind, new_id
from delivery.ledger import Entry
from delivery.port import Queue
from gateway.approvals import AlreadyDecided, NoSuchApproval, decide_in
from gateway.job import JobState
from gateway.store import conversations, jobs, turns
from gateway.store.conversations import Conversation, Spoken

HELP = (
    "`/new` starts a new conversation, `/stop` stops what is running, `/status` tells what is going on, "
    "`/jobs` lists background jobs (`/jobs logs ID`, `/jobs stop ID`), "
    "`/approve ID` and `/deny ID` decide about a command, `/help` shows this."
)

LAST_LINES = 3000
"""Characters of a job's output shown in a chat."""


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
Stopping = Callable[[str], None]


class Commands:
    """Obeys commands. `answering` answers a button press; `stopping` stops a job soon."""

    NAMES = ("new", "stop", "status", "jobs", "approve", "deny", "help")

    def __init__(self, answering: Answering, stopping: Stopping) -> None:
        self.answer = answering
        self._stopping = stopping

    async def obey(self, entry: Entry, conversation: Conversation, command: Command, *, by: str) -> None:
        """Carry a command out and say what came of it, in the caller's transaction."""
        if command.name in {"approve", "deny"}:
            said = await self._decide(entry, conversation, command, by)
        elif command.name == "jobs":
            said = await self._jobs(entry, conversation, command.words)
        elif command.name == "help":
            said = HELP
        else:
            said = await getattr(self, f"_{command.name}")(entry, conversation)
        self.notice(entry, conversation, said)
        await self._keep(entry, conversation, said)

    def notice(self, entry: Entry, conversation: Conversation, text: str) -> None:
        """Say something in a conversation that is no turn's answer."""
        entry.tell(
            Event.now(
                Kind.MESSAGE_COMPLETED,
                conversation.id,
                {"message": new_id("msg"), "role": "notice", "text": text, "files": []},
            )
        )

    @staticmethod
    async def _keep(entry: Entry, conversation: Conversation, text: str) -> None:
        spoken = Spoken(
            id=new_id("msg"),
            role="notice",
            author="",
            text=text,
            turn=None,
            attachments=[],
            created_at=datetime.now(UTC),
        )
        await conversations.add_message(entry.connection, conversation.id, spoken)

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

    async def _status(self, entry: Entry, conversation: Conversation) -> str:
        waiting = await turns.open_turns(entry.connection, conversation.id)
        running = await jobs.listed(
            entry.connection, conversation.account, conversation=conversation.id, state="running"
        )
        states = ", ".join(f"{turn.state}" for turn in waiting) or "idle"
        return f"Turns: {states}. Running jobs: {len(running)}. Conversation {conversation.id}."

    async def _jobs(self, entry: Entry, conversation: Conversation, words: Sequence[str]) -> str:
        if len(words) == 2 and words[0] in {"logs", "stop"}:  # noqa: PLR2004 - a verb and an id
            return await self._one_job(entry, conversation, words[0], words[1])
        found = await jobs.listed(
            entry.connection, conversation.account, conversation=conversation.id, limit=20
        )
        return "\n".join(f"- {job.id} {job.state}: `{job.command[:80]}`" for job in found) or "No jobs yet."

    async def _one_job(self, entry: Entry, conversation: Conversation, verb: str, job_id: str) -> str:
        job = await jobs.find(entry.connection, conversation.account, job_id, conversation=conversation.id)
        if job is None:
            return f"There is no job {job_id} in this conversation."
        if verb == "stop" and job.state is JobState.RUNNING:
            self._stopping(job.id)
            return f"Stopping job {job.id}."
        return f"Job {job.id} is {job.state}.\n\n```\n{job.output[-LAST_LINES:]}\n```"

    @staticmethod
    async def _decide(entry: Entry, conversation: Conversation, command: Command, by: str) -> str:
        approved = command.name == "approve"
        if not command.words:
            return f"Which one? `/{command.name} ID`"
        comment = " ".join(command.words[1:])
        try:
            decided = await decide_in(
                entry, conversation.account, command.words[0], approved=approved, by=by, comment=comment
            )
        except NoSuchApproval:
            return f"There is no approval {command.words[0]} here."
        except AlreadyDecided as error:
            return f"Too late: {error}."
        return f"{decided.state.capitalize()}: `{decided.command[:200]}`"


def _turns(count: int) -> str:
    return "turn" if count == 1 else "turns"
