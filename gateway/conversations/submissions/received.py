"""The events about messages that were received or deleted, as clients see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from channels.message import MessageDeleted
from delivery.broker.port import WorkQueue
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType
from gateway.conversations import room_context
from gateway.conversations.submissions import queue_policy
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.messages import ChatMessageRow, visible_attachment
from gateway.store.turns import turns

MAX_NAME = 200
"""Characters of a person's name in an event."""


class ReceivedMessage(Protocol):
    """What a person sent."""

    @property
    def text(self) -> str:
        """Return the text."""

    @property
    def asker(self) -> str:
        """Return the id of the person or key."""

    @property
    def asker_name(self) -> str:
        """Return the name of the person on the chat platform; empty if it is not known."""

    @property
    def attachments(self) -> Sequence[Mapping[str, Any]]:
        """Return the files."""


class MessagePlace(Protocol):
    """The ids under which a message was stored."""

    @property
    def conversation(self) -> str:
        """Return the conversation's id."""

    @property
    def turn(self) -> str:
        """Return the turn's id."""

    @property
    def message(self) -> str:
        """Return the message's id."""


def received_event(received: ReceivedMessage, place: MessagePlace, *, merged: bool = False) -> Event:
    """Return the event; `merged` means that the message joined a turn that waited."""
    data: dict[str, Any] = {
        "message": place.message,
        "role": "user",
        "text": received.text,
        "author": received.asker,
        "files": [visible_attachment(one) for one in received.attachments],
    }
    if received.asker_name:
        data["author_name"] = received.asker_name[:MAX_NAME]
    if merged:
        data["joined"] = True
    return Event.now(EventType.MESSAGE_RECEIVED, place.conversation, data, turn=place.turn)


async def delete_message(tx: Transaction, account: str, deletion: MessageDeleted) -> None:
    """Forget a message that was deleted at its platform: in the context, in its turn, and as it is shown."""
    conversation = await conversations.get_by_address(tx.connection, account, deletion.address.key)
    await room_context.drop_deleted(tx.connection, account, deletion, conversation)
    stored = await messages.get_by_platform_id(tx.connection, deletion.address, deletion.platform_id)
    if stored is None:
        return
    turn = await turns.get(tx.connection, account, stored.turn or "")
    files = stored.attachments
    if turn is not None and await queue_policy.delete_message(tx.connection, turn, stored.id):
        tx.wake(WorkQueue.TURN, stored.conversation, account=account)
        files = ()
    else:
        await room_context.keep_deletion(tx.connection, account, deletion, author=stored.author)
    await messages.update_content(tx.connection, stored.id, "", files)
    tx.emit(_deleted_event(stored))


def _deleted_event(stored: ChatMessageRow) -> Event:
    data: dict[str, Any] = {
        "message": stored.id,
        "role": "user",
        "text": "",
        "author": stored.author,
        "files": [],
        "deleted": True,
    }
    return Event.now(EventType.MESSAGE_RECEIVED, stored.conversation, data, turn=stored.turn)
