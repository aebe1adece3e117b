"""A performance: one attempt at one turn, its steps turned into events and state, all under the fence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from typing import Any

from delivery.broker.port import Lease
from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.errors import LeaseLost
from delivery.events.event import Event, EventType
from gateway.agents.port import (
    Agent,
    AgentEvent,
    ApprovalRequired,
    Checkpoint,
    Delta,
    Finished,
    MessageCompleted,
    Tools,
    TurnInput,
)
from gateway.conversations import approvals
from gateway.conversations.message_ids import completed_event_id, message_id
from gateway.environments.resolver import Environment
from gateway.files.collection import CollectedFiles, FileCollector
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.conversations import MessageRow
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import turn_queue, turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.turns.deltas import Deltas


class TurnAttempt:
    """Writes what an agent says and does. Every write fails once another holder has the conversation."""

    def __init__(
        self,
        turn: Turn,
        *,
        fence: int,
        lease: Lease,
        transactions: Transactions,
        deltas: Deltas,
        replies_before: int,
        file_collector: FileCollector | None = None,
    ) -> None:
        self.turn = turn
        self._file_collector = file_collector
        self._collect_files: Callable[[], Awaitable[None]] | None = None
        self._fence = fence
        self._lease = lease
        self._transactions = transactions
        self._deltas = deltas
        self._next_message = replies_before
        self._pending_messages: list[str] = []
        self._partial_text: list[str] = []
        self._steered: list[str] | None = None
        self._sandbox_fingerprint = ""
        self._call_targets: approvals.CallTargets = approvals.unknown_target
        self.end_state: TurnState | None = None

    def ensure_held(self) -> None:
        """Raise LeaseLost unless the conversation is certainly still ours."""
        self._lease.ensure_held()

    @asynccontextmanager
    async def begin(self, step: str, *, last: bool = False) -> AsyncIterator[Transaction]:
        """Open a ledger entry under the fence, with what was said before it; the `last` has the files."""
        self._lease.ensure_held()
        async with self._transactions.begin(step) as entry:
            if not await conversations.fence_is_current(
                entry.connection, self.turn.conversation, self._fence
            ):
                raise LeaseLost(f"conversation {self.turn.conversation} has another holder")
            taken = (
                await self._file_collector.attach(entry, self.turn.conversation)
                if self._file_collector and last
                else CollectedFiles()
            )
            await self._write_messages(entry, taken.files)
            await taken.emit_notice(entry, self.turn.conversation)
            yield entry

    def set_environments(self, environments: Mapping[str, Environment], default: Environment) -> None:
        """Set the environments that approvals are bound to and that their questions show."""
        self._sandbox_fingerprint = approvals.fingerprint_all(environments, default)
        self._call_targets = approvals.call_targets(environments, default)

    async def renew_approvals(self, decided: Sequence[Approval]) -> bool:
        """Ask again for what was approved in a sandbox that was changed since; True: the turn waits again."""
        if not any(approval.state == "approved" for approval in decided):
            return False
        async with self.begin("turn.pause") as entry:
            outdated = await approvals.list_outdated(entry, decided, self._sandbox_fingerprint)
            if outdated:
                await approvals.request_again(
                    entry, self.turn, outdated, self._sandbox_fingerprint, targets=self._call_targets
                )
                saved = self.turn.paused or b""
                await turns.pause(entry.connection, self.turn, fence=self._fence, state=saved)
        return bool(outdated)

    async def take_steering(self) -> Sequence[str]:
        """Take what people have said to this turn since, for good, and return all of it."""
        self._lease.ensure_held()
        async with self._transactions.database.read() as connection:
            if self._steered is None:
                self._steered = (
                    await turn_queue.list_steered(connection, self.turn.id) if self.turn.attempt > 1 else []
                )
            waiting = await turn_queue.list_steering(connection, self.turn)
        if waiting:
            await self._merge_steering(waiting, self._steered)
        return tuple(self._steered)

    async def _merge_steering(self, waiting: Sequence[Turn], steered: list[str]) -> None:
        async with self.begin("turn.hear") as entry:
            for one in waiting:
                if await turn_queue.merge(entry.connection, one, self.turn, place=len(steered)):
                    await messages.reassign(entry.connection, one.id, self.turn.id)
                    emit_merged(entry, one, self.turn.id)
                    steered.append(one.input)

    def keep_partial_text(self) -> None:
        """Let what was being said when the turn was cut short stand as a message."""
        if half := "".join(self._partial_text).strip():
            self._pending_messages.append(half)
        self._partial_text = []

    async def run(
        self,
        agent: Agent,
        turn_input: TurnInput,
        tools: Tools,
        collect_files: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Let the agent perform, to its end; `gather` then takes the files it leaves."""
        self._collect_files = collect_files
        async with aclosing(agent.run(turn_input, tools)) as steps:
            async for step in steps:
                await self._handle_event(step)

    async def _handle_event(self, event: AgentEvent) -> None:
        match event:
            case Delta(text=text):
                self._lease.ensure_held()
                self._partial_text.append(text)
                await self._deltas.add(
                    message_id(self.turn.id, self._next_message + len(self._pending_messages)), text
                )
            case MessageCompleted(text=text):
                await self._deltas.close()
                self._partial_text = []
                self._pending_messages.append(text)
            case Checkpoint(state=state):
                async with self.begin("turn.save") as entry:
                    await turns.save_progress(entry.connection, self.turn, fence=self._fence, state=state)
            case ApprovalRequired():
                await self._pause(event)
            case Finished():
                await self._finish(event)

    async def _write_messages(self, tx: Transaction, files: Sequence[dict[str, Any]]) -> None:
        """Write what was said; the files go with the last of it, or on their own."""
        unwritten, self._pending_messages = self._pending_messages, []
        if files and not unwritten:
            unwritten = [""]
        for left, text in zip(range(len(unwritten), 0, -1), unwritten, strict=True):
            message = message_id(self.turn.id, self._next_message)
            await self._write_message(tx, message, text, files if left == 1 else ())
            self._next_message += 1

    async def _write_message(
        self, tx: Transaction, message: str, text: str, files: Sequence[dict[str, Any]]
    ) -> None:
        spoken = MessageRow(
            id=message,
            role="assistant",
            author=self.turn.agent,
            text=text,
            turn=self.turn.id,
            attachments=files,
            created_at=utc_now(),
        )
        await conversations.add_message(tx.connection, self.turn.conversation, spoken)
        tx.emit(
            Event.now(
                EventType.MESSAGE_COMPLETED,
                self.turn.conversation,
                {
                    "message": message,
                    "role": "assistant",
                    "text": text,
                    "attempt": self.turn.attempt,
                    "files": list(files),
                },
                turn=self.turn.id,
                event_id=completed_event_id(message),
            )
        )

    async def _pause(self, required: ApprovalRequired) -> None:
        async with self.begin("turn.pause") as entry:
            await turns.pause(entry.connection, self.turn, fence=self._fence, state=required.state)
            await approvals.request(
                entry, self.turn, required.calls, self._sandbox_fingerprint, targets=self._call_targets
            )

    async def _finish(self, finished: Finished) -> None:
        if self._collect_files is not None:
            await self._collect_files()
        async with self.begin("turn.settle", last=True) as entry:
            settled = await self.settle(
                entry,
                TurnState.COMPLETED,
                output=finished.output,
                usage=asdict(finished.usage),
            )
            if settled and finished.history is not None:
                await conversations.save_history(entry.connection, self.turn.conversation, finished.history)

    async def settle(
        self,
        tx: Transaction,
        state: TurnState,
        *,
        output: str | None = None,
        error: str | None = None,
        usage: dict[str, object] | None = None,
    ) -> bool:
        """Bring the turn to its end in this entry, once, and tell everybody."""
        files: Sequence[dict[str, Any]] = ()
        if self._file_collector is not None and self.turn.notify:
            files = await self._file_collector.list_for_turn(tx.connection, self.turn)
        settled = await end_turn(
            tx,
            self.turn,
            fence=self._fence,
            state=state,
            output=output,
            error=error,
            usage=usage,
            files=files,
        )
        self.end_state = state if settled else None
        return settled


END_KINDS: dict[TurnState, EventType] = {
    TurnState.COMPLETED: EventType.TURN_COMPLETED,
    TurnState.FAILED: EventType.TURN_FAILED,
    TurnState.CANCELLED: EventType.TURN_CANCELLED,
}


async def end_turn(
    tx: Transaction,
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
        await turns.save_progress_as_history(tx.connection, turn)
    settled = await turns.settle(
        tx.connection, turn, fence=fence, state=state, output=output, error=error, usage=usage
    )
    if not settled:
        return False
    await approval_store.expire_for_turn(tx.connection, turn.id)
    result: dict[str, object] = {"state": str(state), "output": output or "", "attempt": turn.attempt}
    if state is TurnState.CANCELLED:
        result["reason"] = await turns.cancel_reason(tx.connection, turn.id)
    if error:
        result["error"] = error
    tx.emit(Event.now(END_KINDS[state], turn.conversation, result, turn=turn.id))
    if turn.notify:
        finished = _finished_data(turn, result, files)
        tx.emit(Event.now(EventType.AGENT_FINISHED, turn.conversation, finished, turn=turn.id))
    return True


def _finished_data(
    turn: Turn, result: dict[str, object], files: Sequence[dict[str, Any]] = ()
) -> dict[str, object]:
    finished: dict[str, object] = {"turnId": turn.id, "agent": turn.agent, "trigger": turn.trigger}
    if turn.job is not None:
        finished["resultId"] = turn.job
    return (
        finished | {key: value for key, value in result.items() if key != "attempt"} | {"files": list(files)}
    )


def emit_merged(tx: Transaction, turn: Turn, into: str) -> None:
    """Tell that a turn is over because another one, already at work, took in what it asked."""
    result: dict[str, object] = {"state": "completed", "output": "", "attempt": 0, "merged_into": into}
    tx.emit(Event.now(EventType.TURN_COMPLETED, turn.conversation, result, turn=turn.id))
    if turn.notify:
        tx.emit(
            Event.now(EventType.AGENT_FINISHED, turn.conversation, _finished_data(turn, result), turn=turn.id)
        )
