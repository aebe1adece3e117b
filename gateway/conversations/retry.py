"""Retries that a person asks for: a failed turn is repeated by a new one, and a waiting one runs now."""

from __future__ import annotations

from dataclasses import replace

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events import outbox
from delivery.events.event import Event, EventType, new_id
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_retries, turns
from gateway.store.turns.turns import Turn


class TurnNotFailed(Exception):
    """Only a turn that failed, or waits for a retry, can be retried."""


async def retry_turn(transactions: Transactions, account: str, turn_id: str) -> Turn | None:
    """Run a turn that waits for a retry now, or queue a new turn for a failed one, once; return the turn.

    Returns None if there is no such turn. The new turn has the old one's input, asker, attachments, job and
    webhook. Raises TurnNotFailed, DatabaseUnavailable.
    """
    async with transactions.begin("intake.submit") as tx:
        turn = await turns.get(tx.connection, account, turn_id)
        if turn is None:
            return None
        if turn.retried_as is not None:
            return await turns.get(tx.connection, account, turn.retried_as)
        retried = await retry_in(tx, turn)
        if retried is not None:
            return retried
    return await retry_turn(transactions, account, turn_id)  # another request was committed first


async def retry_in(tx: Transaction, turn: Turn) -> Turn | None:
    """Retry a turn in the caller's transaction; None if another request was first. Raises TurnNotFailed."""
    if await turn_retries.retry_now(tx.connection, turn):
        tx.wake(WorkQueue.TURN, turn.conversation, account=turn.account)
        return turn
    if turn.state is not TurnState.FAILED:
        raise TurnNotFailed(f"the turn is {turn.state}")
    new = Turn(
        id=new_id("trn"),
        account=turn.account,
        conversation=turn.conversation,
        agent=turn.agent,
        trigger=turn.trigger,
        message=turn.message,
        job=turn.job,
        asker=turn.asker,
        input=turn.input,
        origin=turn.origin,
        context=turn.context,
        request=turn.request,
        notify=turn.notify,
        created_at=utc_now(),
    )
    if not await turn_retries.mark_retried(tx.connection, turn, new.id):
        return None
    await _enqueue(tx, turn, new)
    return new


async def _enqueue(tx: Transaction, failed: Turn, new: Turn) -> None:
    waiting = await turns.count_waiting(tx.connection, new.conversation)
    await turns.insert_turn(tx.connection, new)
    for route in await delivery_store.list_routes(tx.connection, new.conversation, failed.id):
        if route.turn == failed.id:
            await delivery_store.add_route(tx.connection, replace(route, id=new_id("rte"), turn=new.id))
    data: dict[str, object] = {
        "trigger": new.trigger,
        "attempt": 0,
        "position": waiting,
        "retry_of": failed.id,
    }
    if new.job is not None:
        data["resultId"] = new.job
    for failure in await outbox.list_of_type(tx.connection, failed.id, EventType.TURN_FAILED):
        data |= {"failure": failure.id, "error": failure.data.get("error")}
    tx.emit(Event.now(EventType.TURN_QUEUED, new.conversation, data, turn=new.id))
    tx.wake(WorkQueue.TURN, new.conversation, account=new.account)
