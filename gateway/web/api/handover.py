"""Handover over HTTP: a person handles a conversation in the agent's place, and gives it back."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType, new_id
from gateway.conversations.room_context import build_context, merge_contexts
from gateway.store.accounts import accounts
from gateway.store.conversations import handover, messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.messages import MessageRow
from gateway.store.turns import turns
from gateway.store.turns.turns import HANDED_OVER
from gateway.web.api.conversations import require_conversation
from gateway.web.http.problems import HttpProblem
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel

MAX_CARRIED = 50
"""Messages that the agent gets of the time when a person handled the conversation."""


class HandoverRequest(RequestModel):
    """Who is to handle a conversation."""

    state: Literal["human", "agent"]


class HandoverResponse(ResponseModel):
    """Who handles a conversation: `by` is the key of the person, since `since`."""

    conversation: str
    state: Literal["human", "agent"]
    by: str | None
    since: datetime | None


class OperatorMessageSent(ResponseModel):
    """A message of the operator that was sent."""

    message: str
    conversationId: str


async def hand_over(call: ApiCall[HandoverRequest, NoContent]) -> HandoverResponse:
    """Give a conversation to a person, or back to its agent; the same state again changes nothing."""
    ended: list[str] = []
    async with call.services.transactions.begin("handover") as tx:
        conversation = await require_conversation(tx.connection, call.account, call.path["id"])
        by = call.principal.key
        if call.body.state == "human":
            ended = await _start(tx, conversation, by)
        else:
            await _end(tx, conversation, by)
        now = await require_conversation(tx.connection, call.account, conversation.id)
    for turn in ended:
        call.services.turn_worker.cancel_local(turn)
    return HandoverResponse(
        conversation=now.id,
        state="agent" if now.handover_by is None else "human",
        by=now.handover_by,
        since=now.handover_at,
    )


async def _start(tx: Transaction, conversation: Conversation, by: str) -> list[str]:
    """Silence the agent: turns that wait or run are cancelled; returns them."""
    if not await handover.start(tx.connection, conversation.id, by=by):
        return []
    ended = [turn.id for turn in await turns.list_open(tx.connection, conversation.id)]
    for turn in ended:
        await turns.request_cancel(tx.connection, turn, reason=HANDED_OVER)
    tx.emit(Event.now(EventType.HANDOVER_STARTED, conversation.id, {"by": by}))
    tx.wake(WorkQueue.TURN, conversation.id, account=conversation.account)
    return ended


async def _end(tx: Transaction, conversation: Conversation, by: str) -> None:
    """Give the conversation back; the agent's next turn gets the messages since then."""
    if conversation.handover_at is None:
        return
    said = await handover.list_messages(
        tx.connection, conversation.id, since=conversation.handover_at, limit=MAX_CARRIED
    )
    carried = merge_contexts(conversation.carried_context, build_context(said))
    if await handover.end(tx.connection, conversation.id, carried=carried):
        tx.emit(Event.now(EventType.HANDOVER_ENDED, conversation.id, {"by": by}))


async def send_as_operator(
    call: ApiCall[Any, NoContent], conversation: Conversation, text: str
) -> OperatorMessageSent:
    """Send a message of the person who handles a conversation; 409 while the agent does."""
    message = new_id("msg")
    async with call.services.transactions.begin("handover") as tx:
        now = await require_conversation(tx.connection, call.account, conversation.id)
        if now.handover_by is None:
            raise HttpProblem(409, 'the agent handles this conversation; POST …/handover {"state": "human"}')
        key = await accounts.get_key(tx.connection, call.account, call.principal.key)
        name = key.name if key is not None else call.principal.key
        row = MessageRow(
            id=message,
            role="operator",
            author=name,
            text=text,
            turn=None,
            attachments=[],
            created_at=utc_now(),
        )
        await messages.add_message(tx.connection, now.id, row)
        data = {"message": message, "role": "operator", "author": name, "text": text, "files": []}
        tx.emit(Event.now(EventType.MESSAGE_COMPLETED, now.id, data))
    return OperatorMessageSent(message=message, conversationId=conversation.id)
