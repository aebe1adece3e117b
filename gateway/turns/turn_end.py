"""The end of a turn: its final state and events, and the report of a follow-up turn's job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from delivery.database.engine import Connection, Database
from delivery.deliveries.transactions import Transaction
from delivery.events import outbox
from delivery.events.event import Event, EventType
from gateway.conversations.questions import expired_event
from gateway.jobs.report import finished_data, post_report, post_running
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import turns
from gateway.store.turns.turns import SettledTurn, Turn
from gateway.turns.histories import HistoryCache

NO_REASON = "no reason was given"
"""The error of a turn that failed with an error without a text."""

END_KINDS: dict[TurnState, EventType] = {
    TurnState.COMPLETED: EventType.TURN_COMPLETED,
    TurnState.FAILED: EventType.TURN_FAILED,
    TurnState.CANCELLED: EventType.TURN_CANCELLED,
}


class EndedTurns:
    """Tells which turns have ended."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, ids: Sequence[str]) -> Collection[str]:
        """Return those of these turns that have ended."""
        async with self._database.read() as connection:
            return await turns.list_ended(connection, ids)


async def end_turn(
    tx: Transaction,
    turn: Turn,
    *,
    fence: int,
    histories: HistoryCache,
    state: TurnState,
    output: str | None = None,
    error: str | None = None,
    usage: dict[str, object] | None = None,
    files: Sequence[dict[str, Any]] = (),
) -> SettledTurn | None:
    """Settle a turn once under the fence: its final state, its events, its open approvals.

    The progress of a turn that did not complete becomes part of the conversation's history. If it was a
    job's follow-up turn and has no `output`, the chat and `agent.finished` get the job's own report instead.
    The chat is told of the jobs that a turn without an `output` has started.
    Returns None if the turn was settled before.
    """
    if state is not TurnState.COMPLETED:
        error = error or NO_REASON
        await histories.add_progress(tx.connection, turn)
    settled = await turns.settle(
        tx.connection, turn, fence=fence, state=state, output=output, error=error, usage=usage
    )
    if settled is None:
        return None
    await _expire_requests(tx, turn, state)
    result: dict[str, object] = {"state": str(state), "output": output or "", "attempt": turn.attempt}
    if state is TurnState.CANCELLED:
        result["reason"] = await turns.cancel_reason(tx.connection, turn.id)
    if error is not None:
        result["error"] = error
    if (shown := await _shown_retry(tx.connection, turn)) is not None:
        result["replaces"] = shown
    report = await post_report(tx, turn) if output is None else None
    if state is not TurnState.COMPLETED and output is None:
        await post_running(tx, turn)
    tx.emit(Event.now(END_KINDS[state], turn.conversation, result, turn=turn.id))
    if turn.notify:
        finished = finished_data(turn, result | (report or {}), files)
        tx.emit(Event.now(EventType.AGENT_FINISHED, turn.conversation, finished, turn=turn.id))
    return settled


async def _expire_requests(tx: Transaction, turn: Turn, state: TurnState) -> None:
    """Close the approvals and questions of a turn that ends so, and take them back in its chats."""
    if turn.attempt == 1 and turn.state is TurnState.RUNNING:
        return  # the first attempt ends with its requests
    for expired in await approval_store.expire_for_turn(tx.connection, turn.id):
        tx.emit(expired_event(expired, str(state)))


def emit_merged(tx: Transaction, turn: Turn, into: str) -> None:
    """Emit the end of a turn whose input was merged into another, running turn."""
    result: dict[str, object] = {"state": "completed", "output": "", "attempt": 0, "merged_into": into}
    tx.emit(Event.now(EventType.TURN_COMPLETED, turn.conversation, result, turn=turn.id))
    if turn.notify:
        tx.emit(
            Event.now(EventType.AGENT_FINISHED, turn.conversation, finished_data(turn, result), turn=turn.id)
        )


async def _shown_retry(connection: Connection, turn: Turn) -> str | None:
    """Return the event whose chat message reports the turn's retries, if it was retried."""
    if turn.next_at is None:
        return None
    return shown_event(await outbox.list_of_type(connection, turn.id, EventType.TURN_RETRYING))


def shown_event(retries: Sequence[Event]) -> str | None:
    """Return the id of the event whose chat message reports a turn's retries; None if chats know of none."""
    for event in retries:
        if not event.data.get("quiet"):
            return str(event.data.get("replaces", event.id))
    return None
