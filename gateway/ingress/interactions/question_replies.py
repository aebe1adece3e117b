"""Messages to a turn that waits for a person: which of them are answers, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace

from channels.message import Message, RoomKind
from delivery.database.engine import Connection
from delivery.deliveries import queries
from gateway.conversations import questions
from gateway.conversations.message_ids import approval_event_id
from gateway.ingress.channel_context import ChannelContext
from gateway.ingress.commands.chat_commands import ParsedCommand
from gateway.ingress.inbound import InboundMessage
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import ChatThread
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as store
from gateway.store.turns import turns
from gateway.store.turns.approvals import Approval

ANSWER_AWAITED = (
    "The agent waits for an answer to its question, and your message follows after that. "
    "Answer with `/answer {id} TEXT`, or end the turn with `/stop`."
)
SIGN_IN_AWAITED = (
    "The agent waits for a sign-in, and your message follows after that. "
    "Go on without it with `/deny {id}`, or end the turn with `/stop`."
)
APPROVAL_AWAITED = (
    "The agent waits for a decision about a tool call, and your message follows after that. "
    "Decide with `/approve {id}` or `/deny {id}`, or end the turn with `/stop`."
)
_AWAITED = {questions.TOOL: ANSWER_AWAITED, questions.SIGN_IN: SIGN_IN_AWAITED}


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
    waiting = [] if conversation is None else await _list_waiting(connection, conversation.id)
    for one in waiting:
        event = approval_event_id(one.id)
        is_question = one.tool == questions.TOOL
        if is_question and await queries.is_shown_by(connection, event, address.destination, platform_id):
            return one.id
    return None


async def as_direct_answer(
    connection: Connection, thread: ChatThread, inbound: InboundMessage
) -> InboundMessage:
    """Return a text of a direct chat as the command that answers the question there; others as they are.

    A text that does not fit the question, one with files, and a reply to another message are for the agent.
    """
    update = inbound.update
    if inbound.attachments or not isinstance(update, Message) or update.room is not RoomKind.DIRECT:
        return inbound
    if update.edited or update.quoted is not None or thread.conversation.handover_by is not None:
        return inbound
    for one in await _list_waiting(connection, thread.conversation.id):
        if one.tool == questions.TOOL and _fits(one, inbound.text):
            return replace(inbound, command=ParsedCommand(name="answer", args=(one.id, inbound.text)))
    return inbound


def _fits(question: Approval, text: str) -> bool:
    try:
        questions.parse_answer(question.tool, question.args, text)
    except questions.InvalidAnswer:
        return False
    return True


async def describe_waiting(connection: Connection, conversation: str) -> str | None:
    """Return what a message in a conversation has to wait for, if that is a person; else None."""
    for one in await _list_waiting(connection, conversation):
        return _AWAITED.get(one.tool, APPROVAL_AWAITED).format(id=one.id)
    return None


async def _list_waiting(connection: Connection, conversation: str) -> list[Approval]:
    """Return the questions and approvals for which a conversation's turn waits."""
    return [
        one
        for turn in await turns.list_open(connection, conversation)
        if turn.state is TurnState.WAITING
        for one in await store.list_for_turn(connection, turn.id)
        if one.state == "pending" and one.tool != questions.CLIENT_TOOL
    ]
