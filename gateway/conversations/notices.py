"""Notices: what the gateway itself says in a conversation, which is no turn's answer."""

from __future__ import annotations

from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType, new_id
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import MessageRow


async def post_notice(tx: Transaction, conversation: str, text: str) -> None:
    """Say something in a conversation, told on its routes and kept in its history."""
    message = new_id("msg")
    told = {"message": message, "role": "notice", "text": text, "files": []}
    tx.emit(Event.now(EventType.MESSAGE_COMPLETED, conversation, told))
    spoken = MessageRow(
        id=message,
        role="notice",
        author="",
        text=text,
        turn=None,
        attachments=[],
        created_at=utc_now(),
    )
    await conversations.add_message(tx.connection, conversation, spoken)
