"""React with an emoji to a message of the agent's own conversation, where its chat has reactions.

A reaction is one transaction with its event, whose id is derived from the tool call: a repetition after a
crash finds it and does nothing. The event is delivered like a message.
"""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError

from channels.message import Address
from channels.port import ChannelFeature
from delivery.database.engine import Connection
from delivery.deliveries import queries
from delivery.deliveries.transactions import Transactions
from delivery.events import outbox
from delivery.events.event import Event, EventType
from gateway.conversations.message_ids import completed_event_id
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations, messages, room_messages
from gateway.store.turns.turns import Turn
from gateway.tools.messages.outgoing import digest
from gateway.tools.messages.targets import CannotSend, channel_plugin


class TurnReactions:
    """What one agent's turn adds to messages."""

    def __init__(self, transactions: Transactions, agent: Record, turn: Turn) -> None:
        self._transactions = transactions
        self._agent = agent
        self._turn = turn

    async def add(self, emoji: str, message: str | None, *, key: str) -> None:
        """React once to a message, or to the newest one that the turn answers; raises CannotSend."""
        event = f"evt_{digest(key)}"
        try:
            async with self._transactions.begin("message.react") as tx:
                if not await outbox.exists(tx.connection, event):
                    data = await self._plan(tx.connection, emoji, message)
                    conversation, turn = self._turn.conversation, self._turn.id
                    tx.emit(
                        Event.now(EventType.MESSAGE_REACTED, conversation, data, turn=turn, event_id=event)
                    )
        except IntegrityError:  # another attempt at the same call was committed first
            async with self._transactions.database.read() as connection:
                if not await outbox.exists(connection, event):
                    raise

    async def _plan(self, connection: Connection, emoji: str, message: str | None) -> dict[str, object]:
        """Return the data of the event."""
        conversation = await conversations.get_by_id(connection, self._turn.conversation)
        if conversation is None or conversation.address is None:
            raise CannotSend("this conversation is in no chat; only messages of chats have reactions")
        address = Address.decode(conversation.address)
        name = await self._name_of(connection, address, emoji)
        found, platform_id = await self._find(connection, address, message)
        return {
            "message": found,
            "emoji": emoji,
            "name": name,
            "by": self._agent.id,
            "channel": address.channel,
            "room": address.room,
            "platform_id": platform_id,
        }

    async def _name_of(self, connection: Connection, address: Address, emoji: str) -> str:
        """Return the platform's name of an emoji."""
        known = await channel_plugin(connection, self._agent.account, address.channel)
        if ChannelFeature.REACT not in known.features:
            raise CannotSend(f"bots cannot react to messages on {known.title}; answer with words instead")
        name = known.emoji.name_of(emoji)
        if name is not None:
            return name
        others = f"one of {known.emoji.examples}" if known.emoji.examples else "another emoji"
        raise CannotSend(f"{known.title} has no reaction {emoji!r}; use {others}")

    async def _find(
        self, connection: Connection, address: Address, message: str | None
    ) -> tuple[str | None, str]:
        """Return the id of a message, if the gateway gave it one, and that of its platform."""
        if message is None:
            answered = await messages.list_for_turn(connection, self._turn.id)
            known = [one for one in answered if one.platform_id]
            if known:
                return known[-1].id, str(known[-1].platform_id)
            raise CannotSend("this turn answers no message of the chat; give the id of a message")
        stored = await messages.get_by_id(connection, message)
        if stored is not None and stored.conversation == self._turn.conversation:
            if stored.platform_id:
                return stored.id, stored.platform_id
            event = completed_event_id(stored.id)
            sent = await queries.list_for_event(connection, event, address.encode())
            first = min(sent, key=lambda one: one.part, default=None)
            if first is not None and first.platform_id:
                return stored.id, first.platform_id
        elif await self._is_here(connection, address, message):
            return None, message
        raise CannotSend(
            f"there is no message {message!r} here; give the `message` of a message that you were shown, or "
            "leave it out for the one that you answer"
        )

    async def _is_here(self, connection: Connection, address: Address, platform_id: str) -> bool:
        """Return whether a platform's id is that of a message of this conversation."""
        stored = await messages.get_by_platform_id(connection, address, platform_id)
        if stored is not None:
            return stored.conversation == self._turn.conversation
        kept = await room_messages.find(connection, address.destination, platform_id)
        if kept is not None:
            return kept[1].thread in {"", address.thread or ""}
        own = await queries.message_at(connection, address.destination, platform_id)
        return own is not None and own.conversation == self._turn.conversation
