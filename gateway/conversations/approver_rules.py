"""Approvers: who may decide about a command, by the rule of the channel it was asked for in."""

from __future__ import annotations

from dataclasses import dataclass

from channels.message import Address
from delivery.database.engine import Connection
from gateway.store.accounts import accounts, records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations
from gateway.store.turns.turns import Turn

ApproverRule = str | tuple[str, ...]
"""`anyone` whom the bot listens to in that chat, the `asker`, or the ids of those who may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """Where somebody decides from: a chat, and the rule of its channel."""

    address: Address
    rule: ApproverRule


def may_decide(rule: ApproverRule, person: str, *, asker: str) -> bool:
    """Say whether a person whom the gate admitted may decide about what this asker's turn wants to do."""
    if isinstance(rule, tuple):
        return person in rule
    return rule == "anyone" or (rule == "asker" and person == asker and person != "")


def refusal_text(rule: ApproverRule) -> str:
    """Say who may decide, to somebody who may not."""
    return "Only who asked may decide this." if rule == "asker" else "You may not decide this."


def approver_rule(channel: Record) -> ApproverRule:
    """Return a channel's rule, as its record says it."""
    given = channel.config.get("settings", {}).get("approvers", "anyone")
    return given if isinstance(given, str) else tuple(str(one) for one in given)


async def same_room(connection: Connection, conversation: str, address: Address) -> bool:
    """Say whether a conversation stands in the room of this address."""
    found = await conversations.get_by_id(connection, conversation)
    if found is None or found.channel != address.channel or found.address is None:
        return False
    return Address.decode(found.address).room == address.room


async def may_approve_own_turn(connection: Connection, turn: Turn) -> bool:
    """Say whether who asked for a turn may approve its commands by typing them.

    The account's own keys may always decide, wherever the conversation stands.
    """
    conversation = await conversations.get_by_id(connection, turn.conversation)
    if conversation is None or conversation.channel is None:
        return True
    key = await accounts.get_key(connection, turn.account, turn.asker) if turn.asker else None
    if key is not None and key.id == turn.asker:
        return True
    channel = await records.get_by_id(connection, conversation.channel)
    return channel is not None and may_decide(approver_rule(channel), turn.asker, asker=turn.asker)
