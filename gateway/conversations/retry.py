"""Retries: a failed turn is repeated by a new turn at the end of its conversation's queue."""

from __future__ import annotations

from dataclasses import replace

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType, new_id
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_retries, turns
from gateway.store.turns.turns import Turn


class TurnNotFailed(Exception):
    """Only a failed turn can be retried."""


async def retry_turn(transactions: Transactions, account: str, failed_id: str) -> Turn | None:
    """Queue a new turn for a failed one and return it, once; None if there is no such turn.

    The new turn has the old one's input, asker, attachments and webhook. Raises TurnNotFailed,
    DatabaseUnavailable.
    """
    async with transactions.begin("intake.submit") as tx:
        failed = await turns.get(tx.connection, account, failed_id)
        if failed is None:
            return None
        if failed.retried_as is not None:
            return await turns.get(tx.connection, account, failed.retried_as)
        if failed.state is not TurnState.FAILED:
            raise TurnNotFailed(f"the turn is {failed.state}")
        new = Turn(
            id=new_id("trn"),
            account=account,
            conversation=failed.conversation,
            agent=failed.agent,
            trigger=failed.trigger,
            message=failed.message,
            asker=failed.asker,
            input=failed.input,
            notify=failed.notify,
            created_at=utc_now(),
        )
        if await turn_retries.mark_retried(tx.connection, failed, new.id):
            await _enqueue(tx, failed, new)
            return new
    return await retry_turn(transactions, account, failed_id)  # another request was committed first


async def _enqueue(tx: Transaction, failed: Turn, new: Turn) -> None:
    waiting = await turns.count_waiting(tx.connection, new.conversation)
    await turns.insert_turn(tx.connection, new)
    for route in await delivery_store.list_routes(tx.connection, new.conversation, failed.id):
        if route.turn == failed.id:
            await delivery_store.add_route(tx.connection, replace(route, id=new_id("rte"), turn=new.id))
    data = {"trigger": new.trigger, "attempt": 0, "position": waiting, "retry_of": failed.id}
    tx.emit(Event.now(EventType.TURN_QUEUED, new.conversation, data, turn=new.id))
    tx.wake(WorkQueue.TURN, new.conversation, account=new.account)
