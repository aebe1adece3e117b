"""Approver rules: who may decide about a command, by the rule of its channel."""

from __future__ import annotations

from dataclasses import dataclass

from channels.message import Address
from delivery.database.engine import Connection
from gateway.accounts.persons import is_listed
from gateway.store.accounts import accounts, records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations
from gateway.store.turns import approvals
from gateway.store.turns.turns import Turn

ApproverRule = str | tuple[str, ...]
"""`anyone` who is admitted in the chat, the `asker`, or a tuple of person ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """The chat in which a person decides, and the rule of its channel.

    `posts_decisions`: its platform cannot change the question, so a decision is a message of its own.
    `may_be_for_others`: other bots of the room may have got the same command.
    """

    address: Address
    rule: ApproverRule
    posts_decisions: bool = False
    may_be_for_others: bool = False


def may_decide(rule: ApproverRule, person: str, *, asker: str, address: Address) -> bool:
    """Return whether a person who is admitted at an address may decide about a turn of this asker."""
    if isinstance(rule, tuple):
        return is_listed(rule, person, address)
    return rule == "anyone" or (rule == "asker" and person == asker and person != "")


def refusal_text(rule: ApproverRule) -> str:
    """Return the reply to a person who may not decide."""
    return "Only the person who asked may decide this." if rule == "asker" else "You may not decide this."


def approver_rule(channel: Record) -> ApproverRule:
    """Return the rule in a channel's record."""
    given = channel.config.get("settings", {}).get("approvers", "anyone")
    return given if isinstance(given, str) else tuple(str(one) for one in given)


async def same_room(connection: Connection, conversation: str, address: Address) -> bool:
    """Return whether a conversation belongs to the room of this address."""
    found = await conversations.get_by_id(connection, conversation)
    if found is None or found.channel != address.channel or found.address is None:
        return False
    return Address.decode(found.address).room == address.room


async def may_approve_own_turn(connection: Connection, turn: Turn) -> bool:
    """Return whether the asker of a turn approves its commands by typing them.

    The account's own keys may always decide.
    """
    conversation = await conversations.get_by_id(connection, turn.conversation)
    if conversation is None or conversation.channel is None:
        return True
    key = await accounts.get_key(connection, turn.account, turn.asker) if turn.asker else None
    if key is not None and key.id == turn.asker:
        return True
    channel = await records.get_by_id(connection, conversation.channel)
    if channel is None:
        return False
    found = conversation.address
    address = Address.decode(found) if found else Address(channel=channel.id, room="")
    return may_decide(approver_rule(channel), turn.asker, asker=turn.asker, address=address)


async def is_of_other_bot(connection: Connection, approval: str, address: Address) -> bool:
    """Return whether another bot asked in the same room; it replies to a decision that names its question."""
    conversation = await approvals.get_conversation(connection, approval)
    found = await conversations.get_by_id(connection, conversation) if conversation else None
    if found is None or found.address is None or found.channel == address.channel:
        return False
    return Address.decode(found.address).room == address.room
