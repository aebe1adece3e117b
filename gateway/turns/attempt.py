"""One attempt at a turn: writes the agent's steps as state and events, under the conversation's fence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from typing import Any

from channels.message import ToolStep
from delivery.broker.port import Lease
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
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
from gateway.agents.registry import check_continues
from gateway.conversations.message_ids import completed_event_id, message_id
from gateway.conversations.notices import post_notice
from gateway.files.collection import CollectedFiles, FileCollector
from gateway.jobs.report import report_held_up_jobs
from gateway.schedules.heartbeat import may_be_silent, says_nothing
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.messages import MessageRow
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_queue, turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.turns.approval_requests import ApprovalRequests
from gateway.turns.deltas import Deltas
from gateway.turns.file_saving import render_unsaved
from gateway.turns.histories import History, HistoryCache
from gateway.turns.turn_end import emit_merged, end_turn
from sandbox.lifecycle.waits import Wait, reported_wait


class TurnAttempt:
    """Writes the steps of one attempt. Writes raise LeaseLost once another holder has the conversation."""

    def __init__(
        self,
        turn: Turn,
        *,
        fence: int,
        lease: Lease,
        transactions: Transactions,
        deltas: Deltas,
        replies_before: int,
        histories: HistoryCache,
        history: History,
        file_collector: FileCollector | None = None,
        show_step: Callable[[ToolStep], None] | None = None,
    ) -> None:
        self.turn = turn
        self.show_step = show_step
        self.approvals = ApprovalRequests(turn)
        self._file_collector = file_collector
        self._collect_files: Callable[[], Awaitable[None]] | None = None
        self._fence = fence
        self._histories = histories
        self._history = history
        self._lease = lease
        self._transactions = transactions
        self._deltas = deltas
        self._next_message = replies_before
        self._pending_messages: list[str] = []
        self._partial_text: list[str] = []
        self._steered: list[str] | None = None
        self._input_text: Callable[[Turn], str] = lambda turn: turn.input
        self._save_files: Callable[[], Awaitable[str | None]] | None = None
        self._unsaved: str | None = None
        self._may_be_silent = may_be_silent(turn)
        self._last_answer = ""
        self.answer: str | None = None
        """What the agent has answered, and people get, from the end of its run on."""
        self.end_state: TurnState | None = None
        self.has_successor = True
        """False when no other turn of the conversation was open as this one was settled."""

    def ensure_held(self) -> None:
        """Raise LeaseLost unless this process certainly still holds the conversation's lease."""
        self._lease.ensure_held()

    @asynccontextmanager
    async def begin(
        self, step: str, *, last: bool = False, runs_again: bool = False
    ) -> AsyncIterator[Transaction]:
        """Begin a transaction under the fence; it writes pending messages, and the `last` attaches files.

        With `runs_again` it writes none: the next attempt, which begins at the last checkpoint, says them.
        """
        self._lease.ensure_held()
        async with self._transactions.begin(step) as tx:
            current = await conversations.lock_fence(tx.connection, self.turn.conversation)
            if current.fence != self._fence:
                raise LeaseLost(f"conversation {self.turn.conversation} has another holder")
            collected = (
                await self._file_collector.attach(tx, self.turn.conversation)
                if self._file_collector and last and current.has_files
                else CollectedFiles()
            )
            if not runs_again:
                await self._write_messages(tx, collected.files)
            await collected.emit_notice(tx, self.turn.conversation)
            yield tx

    def set_input_text(self, render: Callable[[Turn], str]) -> None:
        """Set the function that returns a turn's input as the agent gets it."""
        self._input_text = render

    def set_file_saver(self, save: Callable[[], Awaitable[str | None]]) -> None:
        """Set the function that saves the files of the turn's sandboxes; it returns why it could not."""
        self._save_files = save

    async def save_files(self) -> None:
        """Save the files of the turn's sandboxes, and keep their tree, before the turn is settled."""
        if self._save_files is not None:
            self._unsaved = await self._save_files()
        if self._file_collector is not None:
            with reported_wait(Wait.SAVING):
                await self._file_collector.trees.keep(self.turn)

    async def renew_approvals(self, decided: Sequence[Approval]) -> bool:
        """Request approvals again whose calls would do something else; returns whether the turn waits."""
        outdated = await self.approvals.find_outdated(self._transactions.database, decided)
        if outdated.calls:
            async with self.begin("turn.pause") as tx:
                await self.approvals.request(tx, outdated, usage={})
                checkpoint = self.turn.paused or b""
                await turns.pause(tx.connection, self.turn, fence=self._fence, state=checkpoint)
        return bool(outdated.calls)

    async def take_steering(self) -> Sequence[str]:
        """Merge the messages that steer this turn into it and return all of them, in order."""
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
        async with self.begin("turn.hear") as tx:
            for one in waiting:
                text = self._input_text(one)
                if await turn_queue.merge(tx.connection, one, self.turn, place=len(steered), text=text):
                    await messages.reassign(tx.connection, one.id, self.turn.id)
                    emit_merged(tx, one, self.turn.id)
                    steered.append(text)

    def keep_partial_text(self) -> None:
        """Keep the text of an interrupted message as a message."""
        if self._may_be_silent:
            return
        if text := "".join(self._partial_text).strip():
            self._pending_messages.append(text)
        self._partial_text = []

    async def run(
        self,
        agent: Agent,
        turn_input: TurnInput,
        tools: Tools,
        collect_files: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Run the agent to its end; `collect_files` then collects the files in the outbox."""
        self._collect_files = collect_files
        check_continues(turn_input)
        async with aclosing(agent.run(turn_input, tools)) as steps:
            async for step in steps:
                await self._handle_event(step)

    async def _handle_event(self, event: AgentEvent) -> None:
        match event:
            case Delta(text=text):
                self._lease.ensure_held()
                if self._may_be_silent:
                    return
                self._partial_text.append(text)
                await self._deltas.add(
                    message_id(self.turn.id, self._next_message + len(self._pending_messages)), text
                )
            case MessageCompleted(text=text):
                await self._deltas.close()
                self._partial_text, self._last_answer = [], text
                if not self._may_be_silent:
                    self._pending_messages.append(text)
            case Checkpoint():
                await self._save(event)
            case ApprovalRequired():
                await self._pause(event)
            case Finished():
                await self._finish(event)

    async def _write_messages(self, tx: Transaction, files: Sequence[dict[str, Any]]) -> None:
        """Write the pending messages; files go with the last one, or alone in an empty message."""
        unwritten, self._pending_messages = self._pending_messages, []
        if files and not unwritten:
            unwritten = [""]
        for remaining, text in zip(range(len(unwritten), 0, -1), unwritten, strict=True):
            message = message_id(self.turn.id, self._next_message)
            await self._write_message(tx, message, text, files if remaining == 1 else ())
            self._next_message += 1

    async def _write_message(
        self, tx: Transaction, message: str, text: str, files: Sequence[dict[str, Any]]
    ) -> None:
        row = MessageRow(
            id=message,
            role="assistant",
            author=self.turn.agent,
            text=text,
            turn=self.turn.id,
            attachments=files,
            created_at=utc_now(),
        )
        await messages.add_message(tx.connection, self.turn.conversation, row)
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

    async def _save(self, checkpoint: Checkpoint) -> None:
        async with self.begin("turn.save") as tx:
            await turns.save_progress(tx.connection, self.turn, fence=self._fence, state=checkpoint.state)
            if checkpoint.record_usage is not None:
                await checkpoint.record_usage(tx)

    async def _pause(self, required: ApprovalRequired) -> None:
        asked = await self.approvals.prepare(required.calls)
        async with self.begin("turn.pause") as tx:
            await turns.pause(tx.connection, self.turn, fence=self._fence, state=required.state)
            await self.approvals.request(tx, asked, usage=asdict(required.usage))
            await report_held_up_jobs(tx, self.turn.conversation, self.list_files)

    async def _finish(self, finished: Finished) -> None:
        if not self._may_be_silent:
            self.answer = finished.output
        if self._collect_files is not None:
            await self._collect_files()
        await self.save_files()
        output = self._spoken_output(finished)
        async with self.begin("turn.settle", last=True) as tx:
            settled = await self.settle(
                tx,
                TurnState.COMPLETED,
                output=output,
                usage=asdict(finished.usage),
            )
            if settled and finished.history is not None:
                self._history = await self._histories.add(
                    tx.connection, self.turn, finished.history, self._history
                )
            if finished.record_usage is not None:
                await finished.record_usage(tx)
        if settled:
            self._histories.committed(self.turn.conversation, self._history, self._fence)

    def _spoken_output(self, finished: Finished) -> str:
        """Return the turn's output, and queue the last message of a turn that could have been silent.

        Such a turn is silent if its answer says nothing, unless it has answered a person's message.
        """
        if not self._may_be_silent:
            return finished.output
        if says_nothing(self._last_answer or finished.output) and not self._steered:
            return ""
        self._pending_messages.append(self._last_answer or finished.output)
        return finished.output

    async def settle(
        self,
        tx: Transaction,
        state: TurnState,
        *,
        output: str | None = None,
        error: str | None = None,
        usage: dict[str, object] | None = None,
    ) -> bool:
        """Settle the turn in this transaction, once, and emit its events."""
        if self._unsaved is not None:
            await post_notice(tx, self.turn.conversation, render_unsaved(self._unsaved), turn=self.turn.id)
        settled = await end_turn(
            tx,
            self.turn,
            fence=self._fence,
            histories=self._histories,
            state=state,
            output=output,
            error=error,
            usage=usage,
            files=await self.list_files(tx.connection, self.turn) if self.turn.notify else (),
        )
        self.end_state = state if settled else None
        self.has_successor = settled is None or settled.has_successor
        return settled is not None

    async def list_files(self, connection: Connection, turn: Turn) -> Sequence[dict[str, Any]]:
        """Return the files of a turn, and of the job that it follows."""
        if self._file_collector is None:
            return ()
        return await self._file_collector.list_for_turn(connection, turn)
