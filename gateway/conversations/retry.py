"""Again: a failed turn is asked for once more, by a new turn at the end of its conversation's queue."""

from __future__ import annotations

from dataclasses import replace

from delivery.broker.port import Queue
from delivery.database.clock import utc_now
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.transactions import Entry, Ledger
from delivery.events.event import Event, Kind, new_id
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_retries, turns
from gateway.store.turns.turns import Turn


class NotFailed(Exception):
    """Only a turn that failed can be asked for again."""


async def ask_again(ledger: Ledger, account: str, failed_id: str) -> Turn | None:
    """Queue what a failed turn was asked, once: asking again returns the same turn; None: no such turn.

    The new turn has the old one's input, asker, attachments and webhook. Raises NotFailed, Unavailable.
    """
    async with ledger.entry("intake.submit") as entry:
        failed = await turns.find(entry.connection, account, failed_id)
        if failed is None:
            return None
        if failed.retried_as is not None:
            return await turns.find(entry.connection, account, failed.retried_as)
        if failed.state is not TurnState.FAILED:
            raise NotFailed(f"the turn is {failed.state}")
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
        if await turn_retries.succeed(entry.connection, failed, new.id):
            await _queue(entry, failed, new)
            return new
    return await ask_again(ledger, account, failed_id)  # somebody else asked at the same moment


async def _queue(entry: Entry, failed: Turn, new: Turn) -> None:
    waiting = await turns.waiting_count(entry.connection, new.conversation)
    await turns.insert_turn(entry.connection, new)
    for route in await delivery_store.routes_for(entry.connection, new.conversation, failed.id):
        if route.turn == failed.id:
            await delivery_store.add_route(entry.connection, replace(route, id=new_id("rte"), turn=new.id))
    told = {"trigger": new.trigger, "attempt": 0, "position": waiting, "retry_of": failed.id}
    entry.tell(Event.now(Kind.TURN_QUEUED, new.conversation, told, turn=new.id))
    entry.wake(Queue.TURN, new.conversation)
