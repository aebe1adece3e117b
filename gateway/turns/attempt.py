"""A performance: one attempt at one turn, its steps turned into events and state, all under the fence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from typing import Any

from delivery.broker.port import Lease
from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Entry, Ledger
from delivery.errors import LeaseLost
from delivery.events.event import Event, Kind
from gateway.agents.port import Agent, Asked, Delta, Finished, Said, Saved, Step, Tools, Work
from gateway.conversations import approvals
from gateway.conversations.message_ids import event_of, message_of
from gateway.files.collection import Outgoing, Taken
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.conversations import Spoken
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import turn_queue, turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.turns.deltas import Deltas


class Performance:
    """Writes what an agent says and does. Every write fails once another holder has the conversation."""

    def __init__(
        self,
        turn: Turn,
        *,
        fence: int,
        lease: Lease,
        ledger: Ledger,
        deltas: Deltas,
        said_before: int,
        files: Outgoing | None = None,
    ) -> None:
        self.turn = turn
        self._files = files
        self._gather: Callable[[], Awaitable[None]] | None = None
        self._fence = fence
        self._lease = lease
        self._ledger = ledger
        self._deltas = deltas
        self._place = said_before
        self._unwritten: list[str] = []
        self._half_said: list[str] = []
        self._heard: list[str] | None = None
        self._sandbox = ""
        self.ended: TurnState | None = None

    def check(self) -> None:
        """Raise LeaseLost unless the conversation is certainly still ours."""
        self._lease.check()

    @asynccontextmanager
    async def write(self, step: str, *, last: bool = False) -> AsyncIterator[Entry]:
        """Open a ledger entry under the fence, with what was said before it; the `last` has the files."""
        self._lease.check()
        async with self._ledger.entry(step) as entry:
            if not await conversations.holds(entry.connection, self.turn.conversation, self._fence):
                raise LeaseLost(f"conversation {self.turn.conversation} has another holder")
            taken = await self._files.take(entry, self.turn.conversation) if self._files and last else Taken()
            await self._write_said(entry, taken.files)
            await taken.tell(entry, self.turn.conversation)
            yield entry

    def bind(self, sandbox: str) -> None:
        """Say in which sandbox, as it is configured now (`mark_of`), approvals are asked for."""
        self._sandbox = sandbox

    async def renew(self, asked: Sequence[Approval]) -> bool:
        """Ask again for what was approved in a sandbox that was changed since; True: the turn waits again."""
        if not any(approval.state == "approved" for approval in asked):
            return False
        async with self.write("turn.pause") as entry:
            outdated = await approvals.outdated(entry, asked, self._sandbox)
            if outdated:
                await approvals.ask_again(entry, self.turn, outdated, self._sandbox)
                saved = self.turn.paused or b""
                await turns.pause(entry.connection, self.turn, fence=self._fence, state=saved)
        return bool(outdated)

    async def hear(self) -> Sequence[str]:
        """Take what people have said to this turn since, for good, and return all of it."""
        self._lease.check()
        async with self._ledger.database.read() as connection:
            if self._heard is None:
                self._heard = (
                    await turn_queue.heard(connection, self.turn.id) if self.turn.attempt > 1 else []
                )
            waiting = await turn_queue.steering(connection, self.turn)
        if waiting:
            await self._take_in(waiting, self._heard)
        return tuple(self._heard)

    async def _take_in(self, waiting: Sequence[Turn], heard: list[str]) -> None:
        async with self.write("turn.hear") as entry:
            for one in waiting:
                if await turn_queue.merge(entry.connection, one, self.turn, place=len(heard)):
                    await messages.give_to(entry.connection, one.id, self.turn.id)
                    tell_merged(entry, one, self.turn.id)
                    heard.append(one.input)

    def keep_half_said(self) -> None:
        """Let what was being said when the turn was cut short stand as a message."""
        if half := "".join(self._half_said).strip():
            self._unwritten.append(half)
        self._half_said = []

    async def play(
        self,
        agent: Agent,
        work: Work,
        tools: Tools,
        gather: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Let the agent perform, to its end; `gather` then takes the files it leaves."""
        self._gather = gather
        async with aclosing(agent.perform(work, tools)) as steps:
            async for step in steps:
                await self._take(step)

    async def _take(self, step: Step) -> None:
        match step:
            case Delta(text=text):
                self._lease.check()
                self._half_said.append(text)
                await self._deltas.add(message_of(self.turn.id, self._place + len(self._unwritten)), text)
            case Said(text=text):
                await self._deltas.close()
                self._half_said = []
                self._unwritten.append(text)
            case Saved(state=state):
                async with self.write("turn.save") as entry:
                    await turns.save(entry.connection, self.turn, fence=self._fence, state=state)
            case Asked():
                await self._pause(step)
            case Finished():
                await self._finish(step)

    async def _write_said(self, entry: Entry, files: Sequence[dict[str, Any]]) -> None:
        """Write what was said; the files go with the last of it, or on their own."""
        unwritten, self._unwritten = self._unwritten, []
        if files and not unwritten:
            unwritten = [""]
        for left, text in zip(range(len(unwritten), 0, -1), unwritten, strict=True):
            message = message_of(self.turn.id, self._place)
            await self._write_message(entry, message, text, files if left == 1 else ())
            self._place += 1

    async def _write_message(
        self, entry: Entry, message: str, text: str, files: Sequence[dict[str, Any]]
    ) -> None:
        spoken = Spoken(
            id=message,
            role="assistant",
            author=self.turn.agent,
            text=text,
            turn=self.turn.id,
            attachments=files,
            created_at=utc_now(),
        )
        await conversations.add_message(entry.connection, self.turn.conversation, spoken)
        entry.tell(
            Event.now(
                Kind.MESSAGE_COMPLETED,
                self.turn.conversation,
                {
                    "message": message,
                    "role": "assistant",
                    "text": text,
                    "attempt": self.turn.attempt,
                    "files": list(files),
                },
                turn=self.turn.id,
                event_id=event_of(message),
            )
        )

    async def _pause(self, asked: Asked) -> None:
        async with self.write("turn.pause") as entry:
            await turns.pause(entry.connection, self.turn, fence=self._fence, state=asked.state)
            await approvals.ask(entry, self.turn, asked.calls, self._sandbox)

    async def _finish(self, finished: Finished) -> None:
        if self._gather is not None:
            await self._gather()
        async with self.write("turn.settle", last=True) as entry:
            settled = await self.settle(
                entry,
                TurnState.COMPLETED,
                output=finished.output,
                usage=asdict(finished.usage),
            )
            if settled and finished.history is not None:
                await conversations.keep_history(entry.connection, self.turn.conversation, finished.history)

    async def settle(
        self,
        entry: Entry,
        state: TurnState,
        *,
        output: str | None = None,
        error: str | None = None,
        usage: dict[str, object] | None = None,
    ) -> bool:
        """Bring the turn to its end in this entry, once, and tell everybody."""
        files: Sequence[dict[str, Any]] = ()
        if self._files is not None and self.turn.notify:
            files = await self._files.of_turn(entry.connection, self.turn)
        settled = await end_turn(
            entry,
            self.turn,
            fence=self._fence,
            state=state,
            output=output,
            error=error,
            usage=usage,
            files=files,
        )
        self.ended = state if settled else None
        return settled


ENDS: dict[TurnState, Kind] = {
    TurnState.COMPLETED: Kind.TURN_COMPLETED,
    TurnState.FAILED: Kind.TURN_FAILED,
    TurnState.CANCELLED: Kind.TURN_CANCELLED,
}


async def end_turn(
    entry: Entry,
    turn: Turn,
    *,
    fence: int,
    state: TurnState,
    output: str | None = None,
    error: str | None = None,
    usage: dict[str, object] | None = None,
    files: Sequence[dict[str, Any]] = (),
) -> bool:
    """Settle a turn under the fence: final state, its events, what it still asked for; once.

    What an unfinished turn had got to becomes the agent's memory of it.
    """
    if state is not TurnState.COMPLETED:
        await turns.keep_progress(entry.connection, turn)
    settled = await turns.settle(
        entry.connection, turn, fence=fence, state=state, output=output, error=error, usage=usage
    )
    if not settled:
        return False
    await approval_store.expire_of(entry.connection, turn.id)
    result: dict[str, object] = {"state": str(state), "output": output or "", "attempt": turn.attempt}
    if state is TurnState.CANCELLED:
        result["reason"] = await turns.why_cancelled(entry.connection, turn.id)
    if error:
        result["error"] = error
    entry.tell(Event.now(ENDS[state], turn.conversation, result, turn=turn.id))
    if turn.notify:
        finished = _finished(turn, result, files)
        entry.tell(Event.now(Kind.AGENT_FINISHED, turn.conversation, finished, turn=turn.id))
    return True


def _finished(
    turn: Turn, result: dict[str, object], files: Sequence[dict[str, Any]] = ()
) -> dict[str, object]:
    finished: dict[str, object] = {"turnId": turn.id, "agent": turn.agent, "trigger": turn.trigger}
    if turn.job is not None:
        finished["resultId"] = turn.job
    return (
        finished | {key: value for key, value in result.items() if key != "attempt"} | {"files": list(files)}
    )


def tell_merged(entry: Entry, turn: Turn, into: str) -> None:
    """Tell that a turn is over because another one, already at work, took in what it asked."""
    result: dict[str, object] = {"state": "completed", "output": "", "attempt": 0, "merged_into": into}
    entry.tell(Event.now(Kind.TURN_COMPLETED, turn.conversation, result, turn=turn.id))
    if turn.notify:
        entry.tell(Event.now(Kind.AGENT_FINISHED, turn.conversation, _finished(turn, result), turn=turn.id))
