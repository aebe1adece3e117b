"""Send a message to another conversation, and change or delete a message that the agent sent.

Each is one transaction with its event, whose id is derived from the tool call: a repetition after a crash
finds it and does nothing. The delivery is that of any other message.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from channels.message import Address
from channels.port import ChannelFeature, ChannelPlugin
from channels.registry import UnknownChannelKind, plugin
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries import queries, rendering
from delivery.deliveries.part import Part
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events import outbox
from delivery.events.event import Event, EventType
from gateway.conversations.message_ids import completed_event_id
from gateway.conversations.room_context import carry, merge_contexts
from gateway.files.collection import FileCollector
from gateway.records.agent_sends import AgentSends
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations, handover, messages
from gateway.store.conversations.conversations import Conversation, MessageRow
from gateway.store.conversations.handover import HandoverMessage
from gateway.store.conversations.messages import OwnMessage
from gateway.store.turns.turns import Turn
from gateway.tools.messages.targets import CannotSend, find_conversation, open_conversation

MAX_CARRIED = 20
"""Messages of other conversations that the agent of a conversation gets with its next turn."""

LAST = "last"
"""The name of the agent's newest message in its own conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message to a place, with the files that were stored for the tool call `key`."""

    to: str
    text: str
    key: str


class OutgoingMessages:
    """What one agent's turn sends and changes."""

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
        await conversations.add_message(tx.connection, conversation.id, row)
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
        carried = merge_contexts(conversation.carried_context, carry([said])) or {}
        carried["earlier"] = carried.get("earlier", [])[-MAX_CARRIED:]
        await handover.set_carried(tx.connection, conversation.id, carried)

    async def change(self, message: str, text: str | None, *, key: str) -> str:
        """Replace the text of a message that the agent sent, or delete it (None), once; return its id.

        Raises CannotSend.
        """
        change = f"evt_{_digest(key)}"
        try:
            async with self._transactions.begin("message.change") as tx:
                if await outbox.exists(tx.connection, change):
                    return message
                found = await self._find(tx.connection, message)
                await self._check_platforms(tx.connection, found, text)
                await messages.update_text(tx.connection, found.id, text or "")
                tx.emit(_change_event(found, text, event_id=change))
                return found.id
        except IntegrityError:
            async with self._transactions.database.read() as connection:
                if not await outbox.exists(connection, change):
                    raise
        return message

    async def _find(self, connection: Connection, message: str) -> OwnMessage:
        """Return a message of the agent, in its conversation or in a place that it may send to."""
        found = await messages.get_own(connection, message, last_of=self._turn.conversation)
        if found is None or not await self._is_own(connection, found):
            raise CannotSend(
                f"you sent no message {message!r}; give the id that send_message returned, or {LAST!r} for "
                "your newest message here"
            )
        return found

    async def _is_own(self, connection: Connection, found: OwnMessage) -> bool:
        if found.conversation == self._turn.conversation:
            return True
        if found.author != self._agent.id:
            return False
        for target in self._sends.to.values():
            place = await find_conversation(connection, self._agent, target)
            if place is not None and place.id == found.conversation:
                return True
        return False

    async def _check_platforms(self, connection: Connection, found: OwnMessage, text: str | None) -> None:
        """Raise CannotSend unless every chat that has the message can change it."""
        parts = await queries.list_chat_parts(connection, completed_event_id(found.id))
        if any(number for _target, number in parts):
            raise CannotSend("it was sent as several messages or with files; send another message instead")
        needed = ChannelFeature.DELETE if text is None else ChannelFeature.EDIT
        for target, _number in parts:
            known = await self._plugin(connection, Address.decode(target).channel)
            if needed not in known.features:
                what = "delete" if text is None else "change"
                raise CannotSend(f"{known.title} cannot {what} messages; send another message instead")
            if text and len(rendering.split_part(Part(text=text), known.limits)) > 1:
                raise CannotSend(f"the text is too long for one message of {known.title}; shorten it")

    async def _plugin(self, connection: Connection, channel: str) -> ChannelPlugin:
        record = await records.get(connection, self._agent.account, "channel", channel)
        try:
            if record is not None:
                return plugin(str(record.config["kind"]))
        except UnknownChannelKind as error:
            raise CannotSend(str(error)) from None
        raise CannotSend("its channel was deleted")


def message_id(key: str) -> str:
    """Return the id of the message that a tool call sends."""
    return f"msg_{_digest(key)}"


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:26]


def _change_event(found: OwnMessage, text: str | None, *, event_id: str) -> Event:
    data: dict[str, object] = {"message": found.id, "edits": completed_event_id(found.id)}
    if text is None:
        return Event.now(EventType.MESSAGE_DELETED, found.conversation, data, event_id=event_id)
    data |= {"role": "assistant", "text": text}
    return Event.now(EventType.MESSAGE_EDITED, found.conversation, data, event_id=event_id)
