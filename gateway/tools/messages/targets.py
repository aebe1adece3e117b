"""Find the conversation of a place that an agent may send to; everything stays in the agent's account."""

from __future__ import annotations

from channels.message import Address
from channels.port import ChannelPlugin
from channels.registry import UnknownChannelKind, plugin
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries import routes
from delivery.deliveries.route import Route
from delivery.deliveries.transactions import Transaction
from delivery.events import outbox
from delivery.events.event import new_id
from gateway.records.agent_sends import SendTarget
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation


class CannotSend(Exception):
    """A message cannot be sent or changed; the text is for the model."""


async def find_conversation(connection: Connection, agent: Record, target: SendTarget) -> Conversation | None:
    """Return the conversation of a place if there is one; raises CannotSend for an unknown channel."""
    if target.conversation is not None:
        return await conversations.get(connection, agent.account, target.conversation)
    address = await _address(connection, agent, target)
    return await conversations.get_by_address(connection, agent.account, address.key)


async def open_conversation(tx: Transaction, agent: Record, name: str, target: SendTarget) -> Conversation:
    """Return the conversation of a place; one is created for a chat without one. Raises CannotSend."""
    found = await find_conversation(tx.connection, agent, target)
    if found is None and target.conversation is not None:
        raise CannotSend(f"the conversation of {name!r} does not exist any more; tell the operator")
    if found is None:
        found = await _create(tx, agent, target)
    if found.handover_by is not None:
        raise CannotSend(f"a person handles the conversation of {name!r} at the moment; send it later")
    return found


async def channel_plugin(connection: Connection, account: str, channel: str) -> ChannelPlugin:
    """Return the adapter of an account's channel; raises CannotSend."""
    record = await records.get(connection, account, "channel", channel)
    try:
        if record is not None:
            return plugin(str(record.config["kind"]))
    except UnknownChannelKind as error:
        raise CannotSend(str(error)) from None
    raise CannotSend("its channel was deleted")


async def _channel(connection: Connection, agent: Record, target: SendTarget) -> Record:
    channel = await records.get(connection, agent.account, "channel", target.channel or "")
    if channel is None:
        raise CannotSend(f"there is no channel {target.channel!r} (any more); tell the operator")
    return channel


async def _address(connection: Connection, agent: Record, target: SendTarget) -> Address:
    channel = await _channel(connection, agent, target)
    return Address(channel=channel.id, room=target.room or "", thread=target.thread)


async def _create(tx: Transaction, agent: Record, target: SendTarget) -> Conversation:
    """Create the conversation of a chat; the channel's agent answers what people say there."""
    channel = await _channel(tx.connection, agent, target)
    address = await _address(tx.connection, agent, target)
    conversation = Conversation(
        id=new_id("cnv"),
        account=agent.account,
        agent=str(channel.config["agent"]),
        channel=channel.id,
        address=address.encode(),
        created_at=utc_now(),
    )
    await conversations.insert_conversation(tx.connection, conversation, address_key=address.key)
    await outbox.create_stream(
        tx.connection, conversation=conversation.id, account=agent.account, agent=conversation.agent
    )
    route = Route.to_chat(account=agent.account, conversation=conversation.id, address=address)
    await routes.add_route(tx.connection, route)
    return conversation
