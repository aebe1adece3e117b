"""The command `/compact`: a turn that replaces the older part of a conversation by the model's summary."""

from __future__ import annotations

from typing import Literal

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType, new_id
from gateway.config.setting_types import SHELL
from gateway.records.agent import OperatorModel, agent_spec
from gateway.store.accounts import records
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import turns
from gateway.store.turns.turns import Turn

COMPACT = "compact"
"""The trigger of such a turn."""

NO_MODEL = "This conversation's agent has no language model, and nothing to summarise."
QUEUED_ALREADY = "A summary is already on its way."


def input_trigger(turn: Turn) -> Literal["message", "job", "compact"]:
    """Return the trigger of a turn as its agent gets it; what a schedule or request starts is a message."""
    if turn.trigger == "job":
        return "job"
    return "compact" if turn.trigger == COMPACT else "message"


async def queue_compaction(
    tx: Transaction, conversation: Conversation, operator_model: OperatorModel, *, by: str, limit: int
) -> str | None:
    """Queue the turn and return None, because its answer follows; or return why there is none."""
    agent = await records.get_by_id(tx.connection, conversation.agent)
    if agent is None or agent_spec(agent, operator_model, conversation.model).models[0] == SHELL:
        return NO_MODEL
    queue = await turns.list_open(tx.connection, conversation.id)
    if any(turn.trigger == COMPACT and not turn.cancel for turn in queue):
        return QUEUED_ALREADY
    if len(queue) >= limit:
        return f"{len(queue)} messages are waiting in this conversation; try again later."
    turn = Turn(
        id=new_id("trn"),
        account=conversation.account,
        conversation=conversation.id,
        agent=conversation.agent,
        trigger=COMPACT,
        asker=by,
        input="/compact",
        created_at=utc_now(),
    )
    await turns.insert_turn(tx.connection, turn)
    queued: dict[str, object] = {"trigger": COMPACT, "attempt": 0, "position": len(queue)}
    tx.emit(Event.now(EventType.TURN_QUEUED, conversation.id, queued, turn=turn.id))
    tx.wake(WorkQueue.TURN, conversation.id, account=conversation.account)
    return None
