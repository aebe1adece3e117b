"""Send a message to another conversation.

It is one transaction with its event, whose id is derived from the tool call: a repetition after a crash finds
it and does nothing. The delivery is that of any other message.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType
from gateway.conversations.message_ids import completed_event_id
from gateway.conversations.room_context import build_context, merge_contexts
from gateway.files.collection import FileCollector
from gateway.records.agent_sends import AgentSends
from gateway.store.accounts.records import Record
from gateway.store.conversations import handover, messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.handover import HandoverMessage
from gateway.store.conversations.messages import MessageRow
from gateway.store.turns.turns import Turn
from gateway.tools.messages.targets import open_conversation

MAX_CARRIED = 20
"""Messages of other conversations that the agent of a conversation gets with its next turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message to a place, with the files that were stored for the tool call `key`."""

    to: str
    text: str
    key: str


class OutgoingMessages:
    """What one agent's turn sends."""

    def __init__(
        self, transactions: Transactions, files: FileCollector, agent: Record, turn: Turn, sends: AgentSends
    ) -> None:
        self._transactions = transactions
        self._files = files
        self._agent = agent
        self._turn = turn
        self._sends = sends

    async def open(self, to: str) -> Conversation:
        """Return the conversation of a place that the agent may send to; raises CannotSend."""
        async with self._transactions.begin("message.send") as tx:
            return await open_conversation(tx, self._agent, to, self._sends.to[to])

    async def send(self, outgoing: OutgoingMessage) -> str:
        """Send a message once, and return its id; raises CannotSend."""
        message = message_id(outgoing.key)
        try:
            async with self._transactions.begin("message.send") as tx:
                if await messages.get_by_id(tx.connection, message) is None:
                    target = self._sends.to[outgoing.to]
                    conversation = await open_conversation(tx, self._agent, outgoing.to, target)
                    await self._post(tx, conversation, message, outgoing)
        except IntegrityError:  # another attempt at the same call was committed first
            async with self._transactions.database.read() as connection:
                if await messages.get_by_id(connection, message) is None:
                    raise
        return message

    async def _post(
        self, tx: Transaction, conversation: Conversation, message: str, outgoing: OutgoingMessage
    ) -> None:
        attached = await self._files.attach(tx, conversation.id, job=outgoing.key)
        row = MessageRow(
            id=message,
            role="assistant",
            author=self._agent.id,
            text=outgoing.text,
            turn=None,
            attachments=list(attached.files),
            created_at=utc_now(),
        )
        await messages.add_message(tx.connection, conversation.id, row)
        await self._tell_agent_there(tx, conversation, outgoing.text)
        data = {
            "message": message,
            "role": "assistant",
            "text": outgoing.text,
            "files": list(attached.files),
            "sent_by": {"agent": self._agent.id, "turn": self._turn.id},
        }
        event = completed_event_id(message)
        tx.emit(Event.now(EventType.MESSAGE_COMPLETED, conversation.id, data, event_id=event))

    async def _tell_agent_there(self, tx: Transaction, conversation: Conversation, text: str) -> None:
        """Have the next turn of the conversation know what was said in it."""
        said = HandoverMessage(
            role="assistant", author=f"{self._agent.name} (agent)", text=text, created_at=utc_now()
        )
        carried = merge_contexts(conversation.carried_context, build_context([said])) or {}
        carried["earlier"] = carried.get("earlier", [])[-MAX_CARRIED:]
        await handover.set_carried(tx.connection, conversation.id, carried)


def message_id(key: str) -> str:
    """Return the id of the message that a tool call sends."""
    return f"msg_{digest(key)}"


def digest(key: str) -> str:
    """Return the part of an id that is derived from a tool call."""
    return hashlib.sha256(key.encode()).hexdigest()[:26]
