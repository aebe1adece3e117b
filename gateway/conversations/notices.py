"""Notices: what the gateway itself says in a conversation, which is no turn's answer."""

from __future__ import annotations

from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Entry
from delivery.events.event import Event, Kind, new_id
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Spoken


async def give_notice(entry: Entry, conversation: str, text: str) -> None:
    """Say something in a conversation, told on its routes and kept in its history."""
    message = new_id("msg")
    told = {"message": message, "role": "notice", "text": text, "files": []}
    entry.tell(Event.now(Kind.MESSAGE_COMPLETED, conversation, told))
    spoken = Spoken(
        id=message,
        role="notice",
        author="",
        text=text,
        turn=None,
        attachments=[],
        created_at=utc_now(),
    )
    await conversations.add_message(entry.connection, conversation, spoken)
