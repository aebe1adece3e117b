"""Replies to the message of a question: their text is the answer, as on every platform where people reply."""

from __future__ import annotations

from dataclasses import replace

from channels.message import Message
from delivery.database.engine import Connection
from delivery.deliveries import queries
from gateway.conversations import questions
from gateway.conversations.message_ids import approval_event_id
from gateway.ingress.channel_context import ChannelContext
from gateway.ingress.commands.chat_commands import ParsedCommand
from gateway.ingress.inbound import InboundMessage
from gateway.store.conversations import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as store
from gateway.store.turns import turns


async def as_answer(
    connection: Connection, context: ChannelContext, inbound: InboundMessage
) -> InboundMessage:
    """Return a reply to an open question of its chat as the command that answers it; others as they are.

    A reply with files stays a message for the agent.
    """
    update = inbound.update
    if inbound.command is not None or inbound.attachments or not isinstance(update, Message):
        return inbound
    if update.edited or update.quoted is None or not update.quoted.platform_id:
        return inbound
    question = await _find_question(connection, context, inbound, update.quoted.platform_id)
    if question is None:
        return inbound
    return replace(inbound, command=ParsedCommand(name="answer", args=(question, inbound.text)))


async def _find_question(
    connection: Connection, context: ChannelContext, inbound: InboundMessage, platform_id: str
) -> str | None:
    """Return the id of the question that waits in this chat thread and is shown by a message."""
    account, address = context.record.account, inbound.address
    conversation = await conversations.get_by_address(connection, account, address.key)
    open_turns = [] if conversation is None else await turns.list_open(connection, conversation.id)
    for turn in open_turns:
        if turn.state is not TurnState.WAITING:
            continue
        for one in await store.list_for_turn(connection, turn.id):
            if one.state != "pending" or one.tool != questions.TOOL:
                continue
            event = approval_event_id(one.id)
            if await queries.is_shown_by(connection, event, address.destination, platform_id):
                return one.id
    return None
