"""The commands that decide about an approval or answer a question."""

from __future__ import annotations

from collections.abc import Sequence

from channels.message import Author
from delivery.deliveries.transactions import Transaction
from delivery.events.event import DECISIONS
from gateway.conversations.approval_question import render_call
from gateway.conversations.approvals import (
    AlreadyDecided,
    ApprovalNotFound,
    NotAllowed,
    answer_in,
    decide_in,
)
from gateway.conversations.approver_rules import DecisionContext, is_of_other_bot
from gateway.conversations.questions import InvalidAnswer
from gateway.store.conversations.conversations import Conversation


async def answer_by_command(
    tx: Transaction,
    conversation: Conversation,
    args: Sequence[str],
    *,
    by: Author,
    decision_context: DecisionContext | None,
) -> str | None:
    """Answer the question that a command names, and return the reply.

    None: the answer itself is posted, or another bot replies.
    """
    if not args:
        return "Which question? `/answer ID TEXT`"
    account, given = conversation.account, " ".join(args[1:])
    try:
        await answer_in(
            tx, account, args[0], given, by=by.id, name=by.name, decision_context=decision_context
        )
    except ApprovalNotFound:
        return await _not_here(tx, "question", args[0], decision_context)
    except (NotAllowed, InvalidAnswer) as error:
        return str(error)
    except AlreadyDecided as error:
        return f"Too late: {error}."
    return None if _is_decision_posted(tx, conversation, decision_context) else "Answered."


async def decide_by_command(
    tx: Transaction,
    conversation: Conversation,
    name: str,
    args: Sequence[str],
    *,
    by: Author,
    decision_context: DecisionContext | None,
) -> str | None:
    """Decide about the approval that a command (`approve` or `deny`) names, and return the reply.

    None: the decision itself is posted, or another bot replies.
    """
    if not args:
        return f"Which one? `/{name} ID`"
    try:
        decided = await decide_in(
            tx,
            conversation.account,
            args[0],
            approved=name == "approve",
            by=by.id,
            name=by.name,
            comment=" ".join(args[1:]),
            decision_context=decision_context,
        )
    except ApprovalNotFound:
        return await _not_here(tx, "approval", args[0], decision_context)
    except (NotAllowed, InvalidAnswer) as error:
        return str(error)
    except AlreadyDecided as error:
        return f"Too late: {error}."
    if _is_decision_posted(tx, conversation, decision_context):
        return None
    return f"{decided.state.capitalize()}: `{render_call(decided.tool, decided.args)[:200]}`"


async def _not_here(
    tx: Transaction, what: str, given: str, decision_context: DecisionContext | None
) -> str | None:
    """Return the reply to a decision about something unknown; None if another bot of the room replies."""
    here = decision_context.address if decision_context and decision_context.may_be_for_others else None
    if here is not None and await is_of_other_bot(tx.connection, given, here):
        return None
    return f"There is no {what} {given} here."


def _is_decision_posted(
    tx: Transaction, conversation: Conversation, decision_context: DecisionContext | None
) -> bool:
    """Return whether a decision of this transaction is a message of its own where the command was typed.

    A decision that repeats an earlier one is not.
    """
    return (
        decision_context is not None
        and decision_context.posts_decisions
        and any(event.type in DECISIONS and event.conversation == conversation.id for event in tx.events)
    )
