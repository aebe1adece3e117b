"""People's reactions as turns of an agent, if its record wants them (`reactions`).

A reaction that was added to a message of the agent, or to one that it answered, is a message of its own: the
person reacted to the quoted message. Its turn may end without an answer.

Of those who may be bots only persons start turns who use the bot in a private chat, wrote in the
conversation or the room, are paired, or are named in the settings: other bots react to messages too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any

from channels.emoji import MAX_EMOJI
from channels.message import Address, Reaction, RoomKind
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries import queries
from delivery.deliveries.transactions import Transaction, Transactions
from gateway.agents.client_request import ClientRequest
from gateway.conversations.message_frame import MessageOrigin
from gateway.conversations.room_context import MAX_TEXT_BYTES, cut
from gateway.conversations.submissions.submission import QueueFull, Submission
from gateway.conversations.submissions.submissions import Submissions
from gateway.ingress.access import AdmissionResult, authorize, is_known_person
from gateway.ingress.channel_context import ChannelContext
from gateway.ingress.interactions.approval_replies import ApprovalReplies
from gateway.records.agent import agent_config
from gateway.schedules.heartbeat import NOTHING_TO_REPORT
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations, messages, room_messages
from gateway.store.conversations.conversations import Conversation

INSTRUCTIONS = (
    "This turn was started by a person's reaction to the quoted message. If it needs no answer, answer "
    f"{NOTHING_TO_REPORT} and nothing else: then no message is sent."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReactedMessage:
    """The message of a conversation that a person reacted to; `by_agent`: the agent wrote it."""

    conversation: str
    text: str
    by_agent: bool


class AgentReactions:
    """Queues a turn for each reaction that an agent wants."""

    def __init__(
        self, transactions: Transactions, submissions: Submissions, approval_replies: ApprovalReplies
    ) -> None:
        self._transactions = transactions
        self._submissions = submissions
        self._approval_replies = approval_replies

    async def on_reaction(self, context: ChannelContext, reaction: Reaction) -> None:
        """Decide about the approval that it is under; else queue the turn of an added reaction, once."""
        if await self._approval_replies.on_reaction(context, reaction):
            return
        if not reaction.added or not reaction.emoji:
            return
        async with self._transactions.database.read() as connection:
            if not await self._is_wanted(connection, context, reaction):
                return
        async with self._transactions.begin("reception") as tx:
            if await self._is_new(tx, context, reaction):
                await self._enqueue(tx, context, reaction)

    async def _is_wanted(self, connection: Connection, context: ChannelContext, reaction: Reaction) -> bool:
        if await authorize(connection, reaction, context) is not AdmissionResult.ADMITTED:
            return False
        found = await _find(connection, context, reaction)
        return found is not None and await _is_person(connection, context, reaction, found[0].id)

    @staticmethod
    async def _is_new(tx: Transaction, context: ChannelContext, reaction: Reaction) -> bool:
        return await conversations.record_event(
            tx.connection,
            account=context.record.account,
            source=context.record.id,
            event_key=reaction.key,
            message=reaction.key[:40],
            turn=None,
        )

    async def _enqueue(self, tx: Transaction, context: ChannelContext, reaction: Reaction) -> None:
        found = await _find(tx.connection, context, reaction)
        if found is None:
            return
        conversation, agent, message = found
        quoted = {"name": agent.name, "bot": "true"} if message.by_agent else {}
        quoted |= {"message": reaction.platform_id, "text": cut(message.text, MAX_TEXT_BYTES)}
        submission = Submission(
            account=context.record.account,
            text=f"(reaction to the quoted message: {reaction.emoji[:MAX_EMOJI]})",
            asker=reaction.author.id,
            asker_name=reaction.author.name,
            origin=_origin(context, conversation, reaction),
            context={"quoted": quoted},
            request=ClientRequest(instructions=INSTRUCTIONS, heartbeat=True).to_json(),
            own_turn=True,
        )
        try:
            await self._submissions.enqueue(tx, conversation, submission)
        except QueueFull:
            return  # a reaction is no question: no one waits for an answer


async def _find(
    connection: Connection, context: ChannelContext, reaction: Reaction
) -> tuple[Conversation, Record, _ReactedMessage] | None:
    """Return the conversation, agent and message of a reaction; None if the agent does not want it."""
    message = await _message(connection, reaction)
    if message is None:
        return None
    account = context.record.account
    conversation = await conversations.get(connection, account, message.conversation)
    if conversation is None or conversation.handover_by is not None:
        return None
    agent = await records.get(connection, account, "agent", conversation.agent)
    if agent is None or not agent_config(agent).reactions:
        return None
    return conversation, agent, message


async def _is_person(
    connection: Connection, context: ChannelContext, reaction: Reaction, conversation: str
) -> bool:
    """Return whether the author of a reaction is certainly a person."""
    author = reaction.author.id
    return (
        reaction.room is RoomKind.DIRECT
        or await is_known_person(connection, context, reaction)
        or await messages.has_author(connection, conversation, author)
        or await room_messages.has_author(connection, reaction.address.destination, author)
    )


async def _message(connection: Connection, reaction: Reaction) -> _ReactedMessage | None:
    sent = await queries.message_at(connection, reaction.address.destination, reaction.platform_id)
    if sent is not None:
        text = sent.part.file.name if sent.part.file is not None else sent.part.text
        return _ReactedMessage(conversation=sent.conversation, text=text, by_agent=True)
    stored = await messages.get_by_platform_id(connection, reaction.address, reaction.platform_id)
    if stored is None:
        return None
    return _ReactedMessage(conversation=stored.conversation, text=stored.text, by_agent=False)


def _origin(context: ChannelContext, conversation: Conversation, reaction: Reaction) -> dict[str, Any] | None:
    """Return who reacted, when and where; None in a direct chat."""
    if reaction.room is RoomKind.DIRECT or conversation.direct:
        return None
    thread = Address.decode(conversation.address).thread if conversation.address else None
    return MessageOrigin(
        name=reaction.author.name,
        id=reaction.author.id,
        platform=str(context.record.config["kind"]),
        room=reaction.address.room,
        thread=thread,
        time=utc_now().astimezone(UTC).isoformat(timespec="seconds"),
    ).encode()
