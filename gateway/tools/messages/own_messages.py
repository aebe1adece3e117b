"""Change or delete a message that the agent sent, where its chats can do that.

Each change is one transaction with its event, whose id is derived from the tool call: a repetition after a
crash finds it and does nothing.
"""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError

from channels.message import Address
from channels.port import ChannelFeature
from delivery.database.engine import Connection
from delivery.deliveries import queries, rendering
from delivery.deliveries.part import Part
from delivery.deliveries.transactions import Transactions
from delivery.events import outbox
from delivery.events.event import Event, EventType
from gateway.conversations.message_ids import completed_event_id
from gateway.records.agent_sends import AgentSends
from gateway.store.accounts.records import Record
from gateway.store.conversations import messages
from gateway.store.conversations.messages import OwnMessage
from gateway.store.turns.turns import Turn
from gateway.tools.messages.outgoing import digest
from gateway.tools.messages.targets import CannotSend, channel_plugin, find_conversation

LAST = "last"
"""The name of the agent's newest message in its own conversation."""


class OwnMessages:
    """What one agent's turn changes of what the agent said."""

    def __init__(self, transactions: Transactions, agent: Record, turn: Turn, sends: AgentSends) -> None:
        self._transactions = transactions
        self._agent = agent
        self._turn = turn
        self._sends = sends

    async def change(self, message: str, text: str | None, *, key: str) -> str:
        """Replace the text of a message that the agent sent, or delete it (None), once; return its id.

        Raises CannotSend.
        """
        change = f"evt_{digest(key)}"
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
            known = await channel_plugin(connection, self._agent.account, Address.decode(target).channel)
            if needed not in known.features:
                what = "delete" if text is None else "change"
                raise CannotSend(f"{known.title} cannot {what} messages; send another message instead")
            if text and len(rendering.split_part(Part(text=text), known.limits)) > 1:
                raise CannotSend(f"the text is too long for one message of {known.title}; shorten it")


def _change_event(found: OwnMessage, text: str | None, *, event_id: str) -> Event:
    data: dict[str, object] = {"message": found.id, "edits": completed_event_id(found.id)}
    if text is None:
        return Event.now(EventType.MESSAGE_DELETED, found.conversation, data, event_id=event_id)
    data |= {"role": "assistant", "text": text}
    return Event.now(EventType.MESSAGE_EDITED, found.conversation, data, event_id=event_id)
