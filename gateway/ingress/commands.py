"""Chat commands: `/new /stop /status /jobs /approve /deny /queue /help`, obeyed where they are heard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from channels.message import Author, Command, Press
from delivery.broker.port import Queue
from delivery.deliveries.transactions import Entry
from gateway.conversations.approvals import AlreadyDecided, NoSuchApproval, NotAllowed, decide_in
from gateway.conversations.approver_rules import Seat
from gateway.conversations.queue_policy import policy_of
from gateway.ingress.sandbox_commands import Errands, tell_job
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.job_state import JobState
from gateway.store.turn_state import QUEUE_LIMIT, Mode, TurnState
from gateway.store.turns import jobs, turns
from gateway.store.turns.turns import Turn

HELP = (
    "`/new` starts a new conversation, `/stop` stops what is running, `/status` tells what is going on, "
    "`/jobs` lists background jobs (`/jobs logs ID`, `/jobs stop ID`), "
    "`/approve ID` and `/deny ID` decide about a command, `/queue` tells what happens to messages that come "
    "while something runs (`/queue followup`, `collect`, `steer`, `interrupt` or `default` changes it), "
    "`/help` shows this."
)

SHOWN = 60
"""Characters of a message shown where only a reminder of it is needed."""


QUEUED = {
    Mode.FOLLOWUP: "waits and is answered in its turn",
    Mode.COLLECT: "is answered together with the others that came meanwhile",
    Mode.STEER: "is heard by what runs at its next step",
    Mode.INTERRUPT: "ends what runs and is answered next",
}

STOPPED = "stopped"
"""Why a turn ended that somebody stopped."""

STOPPED_IN_LINE = "stopped in line"
"""Why a turn ended that waited behind a stopped one: said once is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command word and what follows it."""

    name: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeyed:
    """What came of a command: what to say (None: it is said later), and the turns that are to end."""

    said: str | None
    ended: tuple[str, ...] = ()


def parse(text: str) -> Order | None:
    """Read a command; None for anything else (an unknown `/word` is the agent's to hear)."""
    words = text.split()
    if not words or not words[0].startswith("/"):
        return None
    return order_of(words[0][1:].lower(), words[1:])


def order_of(name: str, words: Sequence[str]) -> Order | None:
    """Return a command of ours; None for a word that is none."""
    name = "help" if name == "start" else name
    return Order(name=name, words=tuple(words)) if name in Commands.NAMES else None


Answering = Callable[[Press | Command, str], Awaitable[None]]


class Commands:
    """Obeys commands. `answer` answers a press or a slash command; `errands` reach into sandboxes soon.

    `limit`: how many turns may wait where neither agent nor conversation says so.
    """

    NAMES = ("new", "stop", "status", "jobs", "approve", "deny", "queue", "help")
    ALWAYS = ("stop", "approve", "deny")
    """Obeyed however much somebody has said before, and in groups without a mention."""

    def __init__(self, answering: Answering, errands: Errands, *, limit: int = QUEUE_LIMIT) -> None:
        self.answer = answering
        self._errands = errands
        self._limit = limit

    async def obey(
        self, entry: Entry, conversation: Conversation, order: Order, *, by: Author, seat: Seat
    ) -> Obeyed:
        """Carry a command out in the caller's transaction, and return what to say of it."""
        if order.name == "stop":
            return await self._stop(entry, conversation)
        if order.name in {"approve", "deny"}:
            said: str | None = await self._decide(entry, conversation, order, by, seat)
        elif order.name == "jobs":
            said = await self._jobs(entry, conversation, order.words)
        elif order.name == "queue":
            said = await self._queue(entry, conversation, order.words)
        elif order.name == "status":
            said = await self._status(entry, conversation, by.id)
        elif order.name == "new":
            said = await self._new(entry, conversation)
        else:
            said = HELP
        return Obeyed(said=said)

    @staticmethod
    async def _new(entry: Entry, conversation: Conversation) -> str:
        await conversations.leave_address(entry.connection, conversation.id)
        return "A new conversation begins with your next message."

    @staticmethod
    async def _stop(entry: Entry, conversation: Conversation) -> Obeyed:
        """End what runs and what waits, a job's follow-up that has not begun excepted."""
        line = await turns.open_turns(entry.connection, conversation.id)
        ended = [turn.id for place, turn in enumerate(line) if not place or turn.trigger != "job"]
        if line and line[0].trigger == "job" and not line[0].attempt:
            ended.remove(line[0].id)
        for turn in ended:
            why = STOPPED if turn == ended[0] else STOPPED_IN_LINE
            await turns.request_cancel(entry.connection, turn, why=why)
        entry.wake(Queue.TURN, conversation.id)
        said = f"Stopping {len(ended)} {_turns(len(ended))}." if ended else "Nothing is running."
        return Obeyed(said=said, ended=tuple(ended))

    async def _queue(self, entry: Entry, conversation: Conversation, words: Sequence[str]) -> str:
        if not words:
            policy = await policy_of(entry.connection, conversation, limit=self._limit)
            return (
                f"Queue mode `{policy.mode}`: a message that comes while something runs "
                f"{QUEUED[policy.mode]}. At most {policy.limit} may wait."
            )
        wanted = words[0].lower()
        if wanted != "default" and wanted not in set(Mode):
            return f"There is no queue mode `{wanted[:20]}`; there are {', '.join(Mode)} and default."
        mode = None if wanted == "default" else wanted
        await conversations.set_queue(
            entry.connection, conversation.id, mode=mode, limit=conversation.queue_limit
        )
        if mode is None:
            return "Messages that come while something runs are treated as the agent says."
        return f"From now on, a message that comes while something runs {QUEUED[Mode(mode)]}."

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
    async def _decide(entry: Entry, conversation: Conversation, order: Order, by: Author, seat: Seat) -> str:
        if not order.words:
            return f"Which one? `/{order.name} ID`"
        try:
            decided = await decide_in(
                entry,
                conversation.account,
                order.words[0],
                approved=order.name == "approve",
                by=by.id,
                name=by.name,
                comment=" ".join(order.words[1:]),
                seat=seat,
            )
        except NoSuchApproval:
            return f"There is no approval {order.words[0]} here."
        except NotAllowed as error:
            return str(error)
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
