"""Notices: messages of the gateway itself in a conversation, which are not a turn's reply."""

from __future__ import annotations

from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType, new_id
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import MessageRow


async def post_notice(
    tx: Transaction, conversation: str, text: str, *, turn: str | None = None, message: str | None = None
) -> None:
    """Add a message of the gateway to a conversation and deliver it on the conversation's routes.

    `message` is its id, if the caller gives it one.
    """
    message = message or new_id("msg")
    data = {"message": message, "role": "notice", "text": text, "files": []}
    tx.emit(Event.now(EventType.MESSAGE_COMPLETED, conversation, data, turn=turn))
    row = MessageRow(
        id=message,
        role="notice",
        author="",
        text=text,
        turn=turn,
        attachments=[],
        created_at=utc_now(),
    )
    await conversations.add_message(tx.connection, conversation, row)
