"""The conversation that a submission names: found by its id or name, or created."""

from __future__ import annotations

from dataclasses import replace

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries.transactions import Transaction
from delivery.events import outbox
from delivery.events.event import new_id
from gateway.conversations.submissions.submission import Submission, UnknownAgent, UnknownTarget, WrongAgent
from gateway.store.accounts import records
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation, ConversationExists

AGENT_GONE = "the conversation belongs to an agent that no longer exists: name another conversation"


async def get_or_create_conversation(tx: Transaction, submission: Submission) -> Conversation:
    """Return the conversation that a submission names, or create it; raises UnknownTarget, WrongAgent."""
    if submission.conversation is not None:
        found = await conversations.get(tx.connection, submission.account, submission.conversation)
        if found is not None:
            return await _with_agent(tx, found, submission)
        if conversations.to_id(submission.conversation).startswith("cnv_"):
            raise UnknownTarget(f"there is no conversation {submission.conversation!r}")
    agent = await _get_agent_id(tx, submission.account, submission.agent)
    try:
        return await create_conversation(
            tx, account=submission.account, agent=agent, name=submission.conversation
        )
    except ConversationExists:  # made by another request at the same moment
        return await get_or_create_conversation(tx, submission)


async def get_or_create_lasting_conversation(tx: Transaction, submission: Submission) -> Conversation:
    """Return the conversation for turns that begin later, so its agent must exist.

    Raises UnknownTarget, WrongAgent.
    """
    found = await get_or_create_conversation(tx, submission)
    await ensure_agent_exists(tx.connection, found)
    return found


async def ensure_agent_exists(connection: Connection, conversation: Conversation) -> None:
    """Raise UnknownTarget for a conversation whose agent was deleted: each of its turns would fail."""
    if await records.get_by_id(connection, conversation.agent) is None:
        raise UnknownTarget(AGENT_GONE)


async def _with_agent(tx: Transaction, conversation: Conversation, submission: Submission) -> Conversation:
    if submission.agent is None:
        return conversation
    agent = await _get_agent_id(tx, submission.account, submission.agent)
    if agent != conversation.agent and not await _change_agent(tx, conversation, agent):
        owner = await records.get_by_id(tx.connection, conversation.agent)
        if owner is None:
            raise WrongAgent(AGENT_GONE)
        remedy = "name that agent, or another conversation"
        raise WrongAgent(f"conversation {conversation.id} belongs to agent {owner.name!r}: {remedy}")
    return replace(conversation, agent=agent)


async def _change_agent(tx: Transaction, conversation: Conversation, agent: str) -> bool:
    """Give an empty conversation to another agent; returns False if it has messages."""
    if not await conversations.change_agent(tx.connection, conversation.id, agent):
        return False
    await outbox.change_agent(tx.connection, conversation=conversation.id, agent=agent)
    return True


async def _get_agent_id(tx: Transaction, account: str, name_or_id: str | None) -> str:
    found = await records.get(tx.connection, account, "agent", name_or_id or "default")
    if found is None:
        raise UnknownAgent(f"there is no agent {name_or_id or 'default'!r}")
    return found.id


async def create_conversation(
    tx: Transaction,
    *,
    account: str,
    agent: str,
    name: str | None = None,
    channel: str | None = None,
    address: str | None = None,
    address_key: str | None = None,
    direct: bool | None = None,
) -> Conversation:
    """Create a conversation with its event stream; raises ConversationExists."""
    conversation = Conversation(
        id=new_id("cnv"),
        account=account,
        agent=agent,
        name=name,
        channel=channel,
        address=address,
        direct=direct,
        created_at=utc_now(),
    )
    await conversations.insert_conversation(tx.connection, conversation, address_key=address_key)
    await outbox.create_stream(tx.connection, conversation=conversation.id, account=account, agent=agent)
    return conversation
